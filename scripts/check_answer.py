"""Fails unless a function's answer is one that its first sample event may have. usage: check_answer.py FUNCTION FILE"""

import json
import sys

function, path = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    text = file.read()
answer = json.loads(text)
if "statusCode" in answer:
    # On empty stores the task that an event names may be unknown.
    good = answer["statusCode"] in (200, 404, 409) and json.loads(answer["body"])["code"] == answer["statusCode"]
else:
    # A tick's report.
    good = "errorMessage" not in answer and len(answer) > 0
print(f"{function}: {text.strip()}")
sys.exit(0 if good else 1)
