"""Transforms template.yaml as CloudFormation does, and checks what no linter knows.

usage: check_template.py TARGET, which gets the transformed template as JSON.
"""

import json
import sys

from samcli.yamlhelper import yaml_parse
from samtranslator.translator.managed_policy_translator import ManagedPolicyLoader
from samtranslator.translator.transform import transform


class Policies(ManagedPolicyLoader):
    """The managed policies that SAM attaches by name, without asking AWS."""

    def __init__(self):
        names = ["AWSLambdaBasicExecutionRole", "AWSLambdaVPCAccessExecutionRole"]
        self.policies = {name: f"arn:aws:iam::aws:policy/service-role/{name}" for name in names}

    def load(self):
        return self.policies


def routes_of_events(template):
    """Path -> logical id of the function whose event names it."""
    return {
        event["Properties"]["Path"]: name
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::Serverless::Function"
        for event in resource["Properties"].get("Events", {}).values()
        if event["Type"] == "HttpApi"
    }


def routes_of_definition(template):
    """Path -> logical id of the function that the API's definition sends it to."""
    definition = template["Resources"]["Api"]["Properties"]["DefinitionBody"]
    integrations = definition["components"]["x-amazon-apigateway-integrations"]
    routes = {}
    for path, methods in definition["paths"].items():
        (method,) = methods.values()
        name = method["x-amazon-apigateway-integration"]["$ref"].rsplit("/", 1)[1]
        arn = integrations[name]["uri"]["Fn::Sub"][1]["Arn"]["Fn::GetAtt"]
        routes[path] = (arn[0] if isinstance(arn, list) else arn.split(".")[0])
        if "security" not in method and path != "/health":
            sys.exit(f"{path} is open to everybody")
    return routes


def main():
    with open("template.yaml", encoding="utf-8") as file:
        text = file.read()
    template = yaml_parse(text)
    events, definition = routes_of_events(template), routes_of_definition(template)
    if events != definition:
        sys.exit(f"events and the API's definition differ: {sorted(events.items() ^ definition.items())}")

    template = yaml_parse(text)
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = "s3://bucket/key"
    transformed = transform(template, {}, Policies())
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(transformed, file, indent=1, default=str)
    print(f"{len(events)} routes, {len(transformed['Resources'])} resources")


if __name__ == "__main__":
    main()
