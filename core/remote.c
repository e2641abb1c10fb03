/* SPDX-License-Identifier: Apache-2.0 */
#include "remote.h"

#include <sys/vfs.h>

/* As in the kernel's linux/magic.h and in what their own projects publish. */
static const struct {
	uint32_t type;
	const char *name; /* for who reads this */
} types[] = {
	{0x00006969, "NFS"},       {0xff534d42, "CIFS"},   {0xfe534d42, "SMB2"},     {0x0000517b, "SMB"},
	{0x0bd00bd0, "Lustre"},    {0x47504653, "GPFS"},   {0x00c36400, "Ceph"},     {0x19830326, "BeeGFS"},
	{0x65735546, "FUSE"},      {0x01021997, "9p"},     {0x20030528, "OrangeFS"}, {0x18031977, "WekaFS"},
	{0xaad7aaea, "PanFS"},     {0x5346414f, "AFS"},    {0x6b414653, "kAFS"},     {0x73757245, "Coda"},
	{0x0000564c, "NCP"},       {0xbeefdead, "SNFS"},   {0x786f4256, "vboxsf"},   {0xbacbacbc, "vmhgfs"},
	{0x7c7c6673, "Parallels"}, {0x013111a8, "IBRIX"},
};

bool dtp_remote_type(uint32_t f_type)
{
	for (unsigned i = 0; i < sizeof types / sizeof *types; i++)
		if (types[i].type == f_type)
			return true;
	return false;
}

bool dtp_remote_file(int fd)
{
	struct statfs s;

	return !fstatfs(fd, &s) && dtp_remote_type((uint32_t)s.f_type);
}
