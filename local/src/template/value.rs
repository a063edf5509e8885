//! Reading a CloudFormation template, whose intrinsic functions are YAML tags.

use serde_norway::Value;

/// The value at `path`, from mapping to mapping.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// The text at `path`.
pub(super) fn text_at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path)?.as_str()
}

/// The names and values of the mapping at `path`; none when there is none.
pub(super) fn members<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let mapping = at(value, path).and_then(Value::as_mapping);
    mapping.into_iter().flatten().filter_map(|(name, value)| Some((name.as_str()?, value)))
}

/// A scalar as the text that an environment variable would hold.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// What a variable's value is without a deployment: itself, or for `!Ref Parameter` the parameter's default. `None`
/// for what only a deployment knows.
pub(super) fn resolve(value: &Value, template: &Value) -> Option<String> {
    match value {
        Value::Tagged(tagged) if tagged.tag == "Ref" => {
            scalar(at(template, &["Parameters", tagged.value.as_str()?, "Default"])?)
        }
        plain => scalar(plain),
    }
}
