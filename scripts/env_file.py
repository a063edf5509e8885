"""Writes the environment file of sam local. usage: env_file.py LINES JSON NAME=VALUE..."""

import json
import sys

lines, target, *more = sys.argv[1:]
with open(lines, encoding="utf-8") as file:
    pairs = [line.strip() for line in file if line.strip() and not line.startswith("#")] + more
with open(target, "w", encoding="utf-8") as file:
    json.dump({"Parameters": dict(pair.split("=", 1) for pair in pairs)}, file)
