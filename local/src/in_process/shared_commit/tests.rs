use super::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn ask(database: &Database, operation: &str, body: &Value) -> Value {
    let body = body.clone();
    let answer = match operation {
        "CreateTable" => database.create_table(understood(body)).map(written),
        "PutItem" => database.put_item(understood(body)).map(written),
        "UpdateItem" => database.update_item(understood(body)).map(written),
        "Scan" => database.scan(understood(body)).map(written),
        other => panic!("{other}"),
    };
    answered(answer)
}

fn understood<Request: DeserializeOwned>(body: Value) -> Request {
    serde_json::from_value(body).expect("a request")
}

fn answered(answer: Answer) -> Value {
    serde_json::from_str(&answer.and_then(|body| body()).expect("an answer")).expect("JSON")
}

/// Things `a` and `b` of a kind, in a table that has an index by kind.
fn things() -> Database {
    let database = Database::memory().expect("a database");
    let attribute = |name: &str| json!({"AttributeName": name, "AttributeType": "S"});
    let key = |name: &str| json!([{"AttributeName": name, "KeyType": "HASH"}]);
    let index = json!({"IndexName": "kinds", "KeySchema": key("kind"), "Projection": {"ProjectionType": "KEYS_ONLY"}});
    let table = json!({
        "TableName": "things", "BillingMode": "PAY_PER_REQUEST", "KeySchema": key("id"),
        "AttributeDefinitions": [attribute("id"), attribute("kind")], "GlobalSecondaryIndexes": [index],
    });
    ask(&database, "CreateTable", &table);
    for id in ["a", "b"] {
        let item = json!({"id": {"S": id}, "kind": {"S": "old"}, "size": {"N": "1"}});
        ask(&database, "PutItem", &json!({"TableName": "things", "Item": item}));
    }
    database
}

fn put(id: &str) -> Value {
    json!({
        "TableName": "things", "Item": {"id": {"S": id}, "kind": {"S": "new"}},
        "ConditionExpression": "attribute_not_exists(#id)", "ExpressionAttributeNames": {"#id": "id"},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD", "ReturnConsumedCapacity": "TOTAL",
    })
}

fn update(id: &str, expression: &str, returns: &str) -> Value {
    json!({
        "TableName": "things", "Key": {"id": {"S": id}}, "UpdateExpression": expression,
        "ConditionExpression": "attribute_exists(#id)", "ReturnValues": returns, "ReturnConsumedCapacity": "TOTAL",
        "ExpressionAttributeNames": {"#id": "id", "#size": "size", "#kind": "kind", "#colour": "colour"},
        "ExpressionAttributeValues": {":one": {"N": "1"}, ":red": {"S": "red"}},
    })
}

fn read(body: &Value) -> Option<SharedWrite> {
    match body.get("Item") {
        Some(_) => SharedWrite::put(understood(body.clone())).ok(),
        None => SharedWrite::update(understood(body.clone())).ok(),
    }
}

const GROWS: &str = "SET #size = #size + :one, #colour = :red REMOVE #kind ";

#[test]
fn answers_are_those_of_commits_of_their_own() {
    for returns in ["NONE", "ALL_NEW", "UPDATED_OLD"] {
        let bodies = [put("c"), update("a", GROWS, returns), update("b", GROWS, returns), put("d")];
        let (together, alone, by_itself) = (things(), things(), things());
        let writes: Vec<SharedWrite> = bodies.iter().map(|body| read(body).expect("may share")).collect();
        let shared = commit(&together, &writes.iter().collect::<Vec<_>>()).expect("written");
        let mut units = [0.0, 0.0];
        for (answer, body) in shared.into_iter().zip(&bodies) {
            let operation = if body.get("Item").is_some() { "PutItem" } else { "UpdateItem" };
            let answers = [answered(answer), ask(&alone, operation, body)];
            for (units, answer) in units.iter_mut().zip(&answers) {
                *units += answer["ConsumedCapacity"]["CapacityUnits"].as_f64().expect("a number");
            }
            assert_eq!(answers[0].get("Attributes"), answers[1].get("Attributes"), "{body}");
            let again = read(body).expect("may share").alone(&by_itself);
            assert_eq!(answered(again), answers[1], "{body}");
        }
        assert_eq!(units[0], units[1], "{returns}");
        let scan = |database| ask(database, "Scan", &json!({"TableName": "things"}));
        assert_eq!(scan(&together), scan(&alone));
    }
}

#[test]
fn refused_writes_are_told_and_nothing_is_written() {
    let database = things();
    let before = ask(&database, "Scan", &json!({"TableName": "things"}));
    let tried = |bodies: &[Value]| {
        let writes: Vec<SharedWrite> = bodies.iter().map(|body| read(body).expect("may share")).collect();
        commit(&database, &writes.iter().collect::<Vec<_>>()).err().expect("refused")
    };
    assert_eq!(tried(&[put("c"), put("a"), update("b", GROWS, "NONE")]), [false, true, false]);
    assert_eq!(tried(&[put("c"), update("nobody", GROWS, "ALL_NEW")]), [false, true]);
    let twice = [update("a", GROWS, "NONE"), update("a", GROWS, "NONE"), put("c")];
    assert_eq!(tried(&twice), [true, true, true], "one transaction cannot write an item twice");
    assert_eq!(ask(&database, "Scan", &json!({"TableName": "things"})), before);
}

#[test]
fn what_a_transaction_cannot_do_has_a_commit_of_its_own() {
    assert!(read(&update("a", GROWS, "UPDATED_OLD")).is_some());
    for returns in ["ALL_OLD", "UPDATED_NEW"] {
        assert!(read(&update("a", GROWS, returns)).is_none(), "{returns}");
    }
    for expression in ["SET #size.#colour = :red", "SET #size = if_not_exists(#size, :one)", "REMOVE #kind"] {
        assert!(read(&update("a", expression, "UPDATED_OLD")).is_none(), "{expression}");
    }
    for (field, value) in [("Expected", json!({})), ("ReturnItemCollectionMetrics", json!("SIZE"))] {
        let mut body = put("a");
        body[field] = value;
        assert!(read(&body).is_none(), "{field}");
    }
}
