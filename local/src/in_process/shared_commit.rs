//! Writes that share a commit.
//!
//! The embedded DynamoDB commits each request by itself, which is a third of what it does. A transaction of DynamoDB
//! is one commit, and refuses all of its writes where it refuses one; so those that are refused are left to be asked
//! for by themselves, and the rest is tried again.

use std::collections::HashMap;

use dynoxide::actions::get_item::GetItemRequest;
use dynoxide::actions::put_item::PutItemRequest;
use dynoxide::actions::transact_write_items::{
    TransactPut, TransactUpdate, TransactWriteItem, TransactWriteItemsRequest,
};
use dynoxide::actions::update_item::{UpdateItemRequest, UpdateItemResponse};
use dynoxide::types::{CapacityDetail, ConsumedCapacity, TRANSACTIONAL_CAPACITY_FACTOR};
use dynoxide::{Database, DynoxideError, Item};

use super::operation::{Answer, written};

const TOTAL: &str = "TOTAL";

/// A write that may share its commit.
#[derive(Debug)]
pub struct SharedWrite {
    write: TransactWriteItem,
    answer: AnswerWith,
    asks_capacity: bool,
}

/// What the answer has of the item.
#[derive(Debug)]
enum AnswerWith {
    Nothing,
    /// All of it, as it is then.
    New,
    /// These attributes, as they were before.
    Old(Vec<String>),
}

impl SharedWrite {
    /// The same as `request`, or that again where it must have a commit of its own.
    pub fn put(request: PutItemRequest) -> Result<Self, Box<PutItemRequest>> {
        let capacity = asks_capacity(request.return_consumed_capacity.as_deref());
        let is_simple = matches!(request.return_values.as_deref(), None | Some("NONE"))
            && request.return_item_collection_metrics.is_none()
            && request.expected.is_none()
            && request.conditional_operator.is_none();
        let Some(asks_capacity) = capacity.filter(|_| is_simple) else {
            return Err(Box::new(request));
        };
        let put = TransactPut {
            table_name: request.table_name,
            item: request.item,
            condition_expression: request.condition_expression,
            expression_attribute_names: request.expression_attribute_names,
            expression_attribute_values: request.expression_attribute_values,
            return_values_on_condition_check_failure: request.return_values_on_condition_check_failure,
        };
        let write = TransactWriteItem { put: Some(put), ..TransactWriteItem::default() };
        Ok(Self { write, answer: AnswerWith::Nothing, asks_capacity })
    }

    /// The same as `request`, or that again where it must have a commit of its own.
    pub fn update(request: UpdateItemRequest) -> Result<Self, Box<UpdateItemRequest>> {
        let capacity = asks_capacity(request.return_consumed_capacity.as_deref());
        let is_simple = request.return_item_collection_metrics.is_none()
            && request.attribute_updates.is_none()
            && request.expected.is_none()
            && request.conditional_operator.is_none();
        let expression = request.update_expression.as_deref().filter(|_| is_simple);
        let names = request.expression_attribute_names.as_ref();
        let answer = match (request.return_values.as_deref(), expression) {
            (None | Some("NONE"), Some(_)) => Some(AnswerWith::Nothing),
            (Some("ALL_NEW"), Some(_)) => Some(AnswerWith::New),
            (Some("UPDATED_OLD"), Some(expression)) => {
                names.and_then(|names| targets(expression, names)).map(AnswerWith::Old)
            }
            _ => None,
        };
        let (Some(answer), Some(asks_capacity)) = (answer, capacity) else {
            return Err(Box::new(request));
        };
        let update = TransactUpdate {
            table_name: request.table_name,
            key: request.key,
            update_expression: request.update_expression.unwrap_or_default(),
            condition_expression: request.condition_expression,
            expression_attribute_names: request.expression_attribute_names,
            expression_attribute_values: request.expression_attribute_values,
            return_values_on_condition_check_failure: request.return_values_on_condition_check_failure,
        };
        let write = TransactWriteItem { update: Some(update), ..TransactWriteItem::default() };
        Ok(Self { write, answer, asks_capacity })
    }

    /// Does it in a commit of its own.
    pub fn alone(self, database: &Database) -> Answer {
        let return_consumed_capacity = self.asks_capacity.then(|| TOTAL.to_owned());
        if let Some(put) = self.write.put {
            return database
                .put_item(PutItemRequest {
                    table_name: put.table_name,
                    item: put.item,
                    condition_expression: put.condition_expression,
                    expression_attribute_names: put.expression_attribute_names,
                    expression_attribute_values: put.expression_attribute_values,
                    return_values_on_condition_check_failure: put.return_values_on_condition_check_failure,
                    return_consumed_capacity,
                    ..PutItemRequest::default()
                })
                .map(written);
        }
        let update = self.write.update.unwrap_or_default();
        let return_values = match self.answer {
            AnswerWith::Nothing => None,
            AnswerWith::New => Some("ALL_NEW".to_owned()),
            AnswerWith::Old(_) => Some("UPDATED_OLD".to_owned()),
        };
        database
            .update_item(UpdateItemRequest {
                table_name: update.table_name,
                key: update.key,
                update_expression: Some(update.update_expression),
                condition_expression: update.condition_expression,
                expression_attribute_names: update.expression_attribute_names,
                expression_attribute_values: update.expression_attribute_values,
                return_values_on_condition_check_failure: update.return_values_on_condition_check_failure,
                return_values,
                return_consumed_capacity,
                ..UpdateItemRequest::default()
            })
            .map(written)
    }

    fn table_name(&self) -> Option<&str> {
        let TransactWriteItem { put, update, .. } = &self.write;
        put.as_ref().map(|put| &*put.table_name).or(update.as_ref().map(|update| &*update.table_name))
    }

    /// The item that it updates, as it is now.
    fn item(&self, database: &Database) -> Result<Option<Item>, DynoxideError> {
        let Some(update) = &self.write.update else {
            return Ok(None);
        };
        let (table_name, key) = (update.table_name.clone(), update.key.clone());
        Ok(database.get_item(GetItemRequest { table_name, key, ..GetItemRequest::default() })?.item)
    }

    /// The attributes that the answer needs from before the write.
    fn before(&self, database: &Database) -> Result<Option<Item>, DynoxideError> {
        let AnswerWith::Old(names) = &self.answer else {
            return Ok(None);
        };
        let mut item = self.item(database)?.unwrap_or_default();
        item.retain(|name, _| names.contains(name));
        Ok(Some(item).filter(|item| !item.is_empty()))
    }

    fn answer(&self, before: Option<Item>, capacity: &[ConsumedCapacity], database: &Database) -> Answer {
        let attributes = if matches!(self.answer, AnswerWith::New) { self.item(database)? } else { before };
        let of_table = |capacity: &&ConsumedCapacity| Some(&*capacity.table_name) == self.table_name();
        let consumed_capacity = capacity.iter().find(of_table).filter(|_| self.asks_capacity).cloned();
        // The answer to a PutItem has no other fields.
        Ok(written(UpdateItemResponse { attributes, consumed_capacity, ..UpdateItemResponse::default() }))
    }
}

/// Whether an answer has the consumed capacity; `None` where it is to have more than a sum.
fn asks_capacity(asked: Option<&str>) -> Option<bool> {
    match asked {
        None | Some("NONE") => Some(false),
        Some(TOTAL) => Some(true),
        _ => None,
    }
}

/// The attributes that an update of whole attributes sets and removes; `None` where it is not as simple as that.
fn targets(expression: &str, names: &HashMap<String, String>) -> Option<Vec<String>> {
    let simple = |c: char| c.is_ascii_alphanumeric() || "#:_ ,=+-".contains(c);
    let sets = expression.strip_prefix("SET ").filter(|_| expression.chars().all(simple))?;
    let (sets, removes) = sets.split_once(" REMOVE ").unwrap_or((sets, ""));
    let set = sets.split(',').map(|part| part.split_once('=').map(|(name, _)| name));
    let removed = removes.split(',').filter(|name| !name.trim().is_empty()).map(Some);
    set.chain(removed).map(|name| names.get(name?.trim()).cloned()).collect()
}

/// Applies `writes` in one commit. Where one is refused nothing is written, and the error has which ones are.
pub fn commit(database: &Database, writes: &[&SharedWrite]) -> Result<Vec<Answer>, Vec<bool>> {
    let all = || vec![true; writes.len()];
    let before: Result<Vec<_>, _> = writes.iter().map(|write| write.before(database)).collect();
    let before = before.map_err(|_| all())?;
    let request = TransactWriteItemsRequest {
        transact_items: writes.iter().map(|write| write.write.clone()).collect(),
        return_consumed_capacity: Some("INDEXES".to_owned()),
        ..TransactWriteItemsRequest::default()
    };
    let capacity = match database.transact_write_items(request) {
        Ok(response) => response.consumed_capacity.unwrap_or_default(),
        Err(DynoxideError::TransactionCanceledException(_, reasons)) => {
            let refused: Vec<bool> = reasons.iter().map(|reason| reason.code != "None").collect();
            let is_told = refused.len() == writes.len() && refused.contains(&true);
            return Err(if is_told { refused } else { all() });
        }
        // Two writes of one item, or more bytes than a transaction may have.
        Err(_) => return Err(all()),
    };
    let capacity: Vec<ConsumedCapacity> = capacity
        .into_iter()
        .map(|table| {
            let sharing = writes.iter().filter(|write| write.table_name() == Some(&table.table_name)).count();
            alone(table, sharing)
        })
        .collect();
    Ok(writes.iter().zip(before).map(|(write, before)| write.answer(before, &capacity, database)).collect())
}

/// What each of `writes` would have consumed without a transaction, on the average: their sum is exact.
fn alone(capacity: ConsumedCapacity, writes: usize) -> ConsumedCapacity {
    let units = |detail: &CapacityDetail| detail.capacity_units;
    let table = capacity.table.as_ref().map_or(0.0, units) / TRANSACTIONAL_CAPACITY_FACTOR;
    let indexes: f64 = capacity.global_secondary_indexes.iter().flat_map(HashMap::values).map(units).sum();
    let capacity_units = (table + indexes) / writes as f64;
    ConsumedCapacity { table_name: capacity.table_name, capacity_units, ..ConsumedCapacity::default() }
}

#[cfg(test)]
mod tests;
