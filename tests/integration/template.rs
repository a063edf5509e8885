//! What template.yaml wires is what the functions are.

use std::cell::RefCell;
use std::collections::BTreeSet;

use local::template::Template;
use punctual_core::config::{Config, DispatchConfig, Environment, TickConfig};
use punctual_core::table::attributes::{BUCKET, EXPIRES_AT, INDEX, LANE, TASK_ID, WAKE};
use serde_json::json;
use serde_norway::Value;
use tests::{World, call};

/// The variables that a function reads, by what its `main.rs` calls.
async fn variables_of(function: &str) -> BTreeSet<String> {
    let asked = RefCell::new(BTreeSet::new());
    let lookup = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        let value = match name {
            "TABLE_NAME" => "tasks",
            "REDIS_URL" => "redis://localhost:1",
            "WEBHOOK_ALLOWED_HOSTS" => "*",
            "WEBHOOK_SECRET" => "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let environment = Environment(&lookup);
    Config::read(&environment).expect("valid");
    match function {
        "refresh" | "recover" => drop(TickConfig::read(&environment).expect("valid")),
        "dispatch" => {
            DispatchConfig::read(&environment).expect("valid");
            dispatch::registry(&environment).await.expect("valid");
        }
        _ => {}
    }
    asked.into_inner()
}

#[tokio::test]
async fn scenario_39_no_function_reads_a_variable_that_the_template_does_not_declare_for_it() {
    let template = Template::embedded().expect("template.yaml is readable");
    for function in &template.functions {
        let declared: BTreeSet<String> =
            template.globals.keys().chain(function.variables.keys()).map(ToString::to_string).collect();
        let read = variables_of(&function.name).await;
        let undeclared: Vec<&String> = read.difference(&declared).collect();
        assert!(undeclared.is_empty(), "{}: {undeclared:?}", function.name);
        // The log's filter and the endpoint are read by libraries.
        let libraries = ["RUST_LOG", "AWS_ENDPOINT_URL_DYNAMODB"].map(str::to_owned);
        let unread: Vec<&String> = declared.difference(&read).filter(|name| !libraries.contains(name)).collect();
        assert!(unread.is_empty(), "{} never reads {unread:?}", function.name);
    }
}

#[test]
fn every_package_in_functions_is_wired() {
    let template = Template::embedded().expect("template.yaml is readable");
    let wired: BTreeSet<String> = template.functions.iter().map(|function| function.name.clone()).collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions");
    let packages: BTreeSet<String> = std::fs::read_dir(folder)
        .expect("the folder of functions")
        .map(|entry| entry.expect("an entry").path())
        .filter(|folder| folder.join("Cargo.toml").exists())
        .map(|folder| folder.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned())
        .collect();
    assert_eq!(wired, packages);
}

#[tokio::test]
async fn every_route_reaches_a_function_that_knows_it() {
    let world = World::new().await;
    let template = Template::embedded().expect("template.yaml is readable");
    let mut routes = 0;
    for function in &template.functions {
        for route in &function.routes {
            routes += 1;
            assert_eq!(route.method, "ANY", "{}: the function itself answers 405", route.path);
            let path = route.path.replace("{taskId}", "1").replace("{type}", "t").replace("{priority}", "0");
            // A method that no path takes: only a function that knows the path says 405.
            let reply = call(&world.service, "PATCH", &path, json!({})).await;
            assert_eq!(reply.error(), (405, "method_not_allowed"), "{path}");
        }
    }
    assert_eq!(routes, 15);
}

#[test]
fn the_table_of_the_template_is_the_one_that_the_code_writes() {
    let table = Template::embedded().expect("template.yaml is readable").table;
    assert_eq!(table.key_schema.len(), 1);
    assert_eq!(table.key_schema[0].attribute_name, TASK_ID);
    let [index] = &table.global_secondary_indexes[..] else { panic!("one index") };
    assert_eq!(index.index_name, INDEX);
    let keys: Vec<&str> = index.key_schema.iter().map(|key| key.attribute_name.as_str()).collect();
    assert_eq!(keys, [BUCKET, WAKE]);
    assert_eq!(index.projection.projection_type, "INCLUDE");
    assert_eq!(index.projection.non_key_attributes, [LANE]);
    let ttl = table.time_to_live_specification.expect("a TTL");
    assert_eq!((ttl.attribute_name.as_str(), ttl.enabled), (EXPIRES_AT, true));
}

/// The template as it is written.
fn written() -> Value {
    serde_norway::from_str(local::template::TEXT).expect("template.yaml is YAML")
}

/// A text, with or without an intrinsic function around it.
fn text(value: &Value) -> &str {
    match value {
        Value::Tagged(tagged) => text(&tagged.value),
        value => value.as_str().unwrap_or_default(),
    }
}

/// A hidden parameter cannot be left empty in `sam deploy --guided`, and stays in the deployer's files.
#[test]
fn secrets_come_from_the_secrets_manager_only() {
    let template = written();
    let parameters = template["Parameters"].as_mapping().expect("parameters");
    let hidden: Vec<&str> =
        parameters.iter().filter(|(_, it)| it.get("NoEcho").is_some()).filter_map(|(name, _)| name.as_str()).collect();
    assert!(hidden.is_empty(), "{hidden:?}");
    for arn in ["RedisUrlSecretArn", "WebhookSecretArn"] {
        assert_eq!(template["Parameters"][arn]["Default"].as_str(), Some(""), "{arn} can be left out");
        assert!(local::template::TEXT.contains(&format!("{{{{resolve:secretsmanager:${{{arn}}}}}}}")), "{arn}");
    }
}

/// CloudFormation reads a secret again only for a function that changes, and each has the URL of Redis.
#[test]
fn every_function_changes_with_the_revision_of_the_secrets() {
    let template = written();
    let mut functions = 0;
    for (name, resource) in template["Resources"].as_mapping().expect("resources") {
        if resource["Type"].as_str() == Some("AWS::Serverless::Function") {
            functions += 1;
            assert!(text(&resource["Properties"]["Description"]).contains("${SecretsRevision}"), "{name:?}");
        }
    }
    assert_eq!(functions, Template::embedded().expect("template.yaml is readable").functions.len());
}

#[test]
fn health_is_open_and_so_has_a_low_limit() {
    let template = written();
    let api = &template["Resources"]["Api"]["Properties"];
    assert!(!api["DefinitionBody"]["paths"]["/health"]["x-amazon-apigateway-any-method"].is_null());
    let health = &api["RouteSettings"]["ANY /health"];
    assert_eq!(health["ThrottlingRateLimit"].as_u64(), Some(10));
    assert_eq!(health["ThrottlingBurstLimit"].as_u64(), Some(20));
}

/// Every sample event is one that its function answers: a good one with success, one named `bad-...` with a 4xx.
#[tokio::test(flavor = "multi_thread")]
async fn every_sample_event_is_answered_as_its_name_says() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../events");
    let mut seen = 0;
    for function in std::fs::read_dir(folder).expect("the folder of events") {
        let function = function.expect("an entry");
        let name = function.file_name().into_string().expect("UTF-8");
        for file in std::fs::read_dir(function.path()).expect("a folder") {
            let path = file.expect("an entry").path();
            let event = std::fs::read_to_string(&path).expect("an event");
            serde_json::from_str::<serde_json::Value>(&event).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            seen += 1;
            let world = World::new().await;
            let answer = match name.as_str() {
                "add" => add::handle(&world.service, &event).await,
                "cancel" => cancel::handle(&world.service, &event).await,
                "poll" => poll::handle(&world.service, &event).await,
                "settle" => settle::handle(&world.service, &event).await,
                "inspect" => inspect::handle(&world.service, &event).await,
                // The ticks ignore their events.
                "refresh" | "recover" | "dispatch" => continue,
                other => panic!("there is no function {other}"),
            };
            let bad = path.file_name().is_some_and(|file| file.to_string_lossy().starts_with("bad"));
            let status = answer.status_code;
            if bad {
                assert!((400..500).contains(&status), "{path:?}: {}", answer.body);
            } else {
                // On empty stores, a task that an event names is unknown.
                assert!(status == 200 || status == 404 || status == 409, "{path:?}: {}", answer.body);
            }
        }
    }
    assert!(seen >= 50, "{seen} events");
}
