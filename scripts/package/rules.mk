# SPDX-License-Identifier: Apache-2.0
# Installing and packaging: make install|uninstall [DESTDIR=DIR] [PREFIX=/usr/local]; make dist, make deb into build/.

# Each file with its mode and its place below PREFIX.
INSTALLED := difftp:755:bin/difftp docs/difftp.1:644:share/man/man1/difftp.1 \
	$(foreach f,$(PLANS),$f:644:share/difftp/$f) $(foreach f,README.md CHANGELOG.md $(wildcard docs/*.md docs/demo/*),$f:644:share/doc/difftp/$f)
INSTALLED += $(foreach f,$(shell find tests/models/configs -type f),$f:644:share/difftp/$(f:tests/models/%=%))
SHELLS := bash:bash-completion/completions/difftp zsh:zsh/site-functions/_difftp fish:fish/vendor_completions.d/difftp.fish
INSTALLED += $(foreach s,$(SHELLS),$(B)/completion/$(firstword $(subst :, ,$s)):644:share/$(lastword $(subst :, ,$s)))

$(B)/completion/%: $(B)/difftp
	@mkdir -p $(@D)
	$(Q)$< completion $* > $@.tmp && mv $@.tmp $@

install: difftp $(foreach s,$(SHELLS),$(B)/completion/$(firstword $(subst :, ,$s)))
	@set -e; for f in $(INSTALLED); do \
		from=$${f%%:*} mode=$${f#*:} to='$(DESTDIR)$(PREFIX)'/$${f##*:}; \
		install -D -m $${mode%%:*} $$from "$$to"; echo "  INST $$to"; \
	done
uninstall:
	@set -e; for f in $(INSTALLED); do rm -f '$(DESTDIR)$(PREFIX)'/$${f##*:}; done
	@find '$(DESTDIR)$(PREFIX)/share/difftp' '$(DESTDIR)$(PREFIX)/share/doc/difftp' -depth -type d -empty -delete 2>/dev/null || :

# The committed sources, the same bytes whoever packs them.
dist:
	sh scripts/package/dist.sh build
deb: difftp
	sh scripts/package/deb.sh build

.PHONY: install uninstall dist deb
