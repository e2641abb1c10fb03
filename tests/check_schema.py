#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_schema.py SCHEMA FILE...: checks the schema, then says of each file "valid FILE" or "invalid FILE: why"."""
import json
import sys

from jsonschema import Draft202012Validator


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


schema = load(sys.argv[1])
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
for path in sys.argv[2:]:
    error = next(iter(validator.iter_errors(load(path))), None)
    print(f"invalid {path}: {error.message}" if error else f"valid {path}")
