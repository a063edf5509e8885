//! What template.yaml lets each function's role do.

use std::collections::BTreeMap;

use local::template::TEXT;
use serde_norway::Value;

/// The actions that the role of `function` allows, each with the resource that it is allowed on, as the template
/// writes it.
pub fn actions_of(function: &str) -> BTreeMap<String, String> {
    let template: Value = serde_norway::from_str(TEXT).expect("template.yaml is YAML");
    let mut resources = template["Resources"].as_mapping().expect("resources").values();
    let of_function = |resource: &&Value| {
        let metadata = resource.get("Metadata").and_then(|metadata| metadata.get("BuildProperties"));
        metadata.and_then(|properties| properties.get("Binary")).and_then(Value::as_str) == Some(function)
    };
    let resource = resources.find(of_function).unwrap_or_else(|| panic!("no function {function}"));
    let mut actions = BTreeMap::new();
    collect(&resource["Properties"]["Policies"], &mut actions);
    actions
}

/// The actions that the private way to DynamoDB lets through.
pub fn actions_of_endpoint() -> BTreeMap<String, String> {
    let template: Value = serde_norway::from_str(TEXT).expect("template.yaml is YAML");
    let mut actions = BTreeMap::new();
    collect(&template["Resources"]["DynamoDbEndpoint"]["Properties"]["PolicyDocument"], &mut actions);
    actions
}

/// Adds the actions of each statement in `value`, whatever conditions stand around it.
fn collect(value: &Value, actions: &mut BTreeMap<String, String>) {
    match value {
        Value::Tagged(tagged) => collect(&tagged.value, actions),
        Value::Sequence(all) => all.iter().for_each(|value| collect(value, actions)),
        Value::Mapping(mapping) => match mapping.get("Action") {
            Some(action) => {
                let resource = mapping.get("Resource").map(text).unwrap_or_default();
                let all = action.as_sequence().cloned().unwrap_or_else(|| vec![action.clone()]);
                actions.extend(all.iter().map(|action| (text(action), resource.clone())));
            }
            None => mapping.values().for_each(|value| collect(value, actions)),
        },
        _ => {}
    }
}

/// A text, with or without an intrinsic function around it; a list's texts, separated by spaces.
fn text(value: &Value) -> String {
    match value {
        Value::Tagged(tagged) => text(&tagged.value),
        Value::Sequence(all) => all.iter().map(text).collect::<Vec<_>>().join(" "),
        value => value.as_str().unwrap_or_default().to_owned(),
    }
}
