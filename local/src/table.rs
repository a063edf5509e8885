//! Makes the table as the template describes it, where it is missing.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::create_table::builders::CreateTableFluentBuilder;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection, ProjectionType,
    ScalarAttributeType, TableDescription, TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
};
use thiserror::Error;
use tokio::time::{Instant, sleep};
use tracing::info;

use crate::template::{KeyPart, TableDefinition};
use crate::ticks::causes;

/// A new table and its index are usable after this at the latest.
const ACTIVE_WITHIN: Duration = Duration::from_secs(60);
/// The pause between two looks at a table that is being made.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The table could not be made or is not the one that the template describes.
#[derive(Debug, Error)]
pub enum TableError {
    /// DynamoDB refused or did not answer.
    #[error("DynamoDB: {0}")]
    DynamoDb(String),
    /// The template's definition is incomplete.
    #[error("template.yaml: {0}")]
    Definition(#[from] BuildError),
    /// Somebody else's table has the name.
    #[error("the table {0} has not the key or the index of template.yaml: name another one with TABLE_NAME")]
    Foreign(String),
    /// The table does not come up.
    #[error("the table {0} does not become active")]
    NotActive(String),
}

impl<E: std::error::Error + 'static> From<SdkError<E>> for TableError {
    fn from(error: SdkError<E>) -> Self {
        Self::DynamoDb(causes(&error))
    }
}

/// Makes the table `name` unless it is there, waits until it can be used, and turns its expiry on. Several runners
/// may do so at once.
pub async fn ensure(client: &Client, name: &str, definition: &TableDefinition) -> Result<(), TableError> {
    if describe(client, name).await?.is_none() {
        match creation(client.create_table().table_name(name), definition)?.send().await {
            Ok(_) => info!(table = name, "made the table"),
            // Another runner was faster.
            Err(error) if error.code() == Some("ResourceInUseException") => {}
            Err(error) => return Err(error.into()),
        }
    }
    let table = active(client, name).await?;
    if !fits(&table, definition) {
        return Err(TableError::Foreign(name.to_owned()));
    }
    enable_expiry(client, name, definition).await
}

async fn describe(client: &Client, name: &str) -> Result<Option<TableDescription>, TableError> {
    match client.describe_table().table_name(name).send().await {
        Ok(answer) => Ok(answer.table),
        Err(error) if error.code() == Some("ResourceNotFoundException") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn active(client: &Client, name: &str) -> Result<TableDescription, TableError> {
    let deadline = Instant::now() + ACTIVE_WITHIN;
    loop {
        // A table that was made a moment ago may still be unknown.
        if let Some(table) = describe(client, name).await?
            && table.table_status() == Some(&TableStatus::Active)
        {
            return Ok(table);
        }
        if Instant::now() > deadline {
            return Err(TableError::NotActive(name.to_owned()));
        }
        sleep(LOOK_AGAIN).await;
    }
}

fn fits(table: &TableDescription, definition: &TableDefinition) -> bool {
    let same_key = |there: &[KeySchemaElement], wanted: &[KeyPart]| {
        there.len() == wanted.len()
            && wanted.iter().all(|part| there.iter().any(|element| element.attribute_name() == part.attribute_name))
    };
    same_key(table.key_schema(), &definition.key_schema)
        && definition.global_secondary_indexes.iter().all(|wanted| {
            let there = table.global_secondary_indexes().iter().find(|i| i.index_name() == Some(&wanted.index_name));
            there.is_some_and(|index| same_key(index.key_schema(), &wanted.key_schema))
        })
}

fn creation(
    mut request: CreateTableFluentBuilder,
    definition: &TableDefinition,
) -> Result<CreateTableFluentBuilder, BuildError> {
    request = request.billing_mode(BillingMode::from(definition.billing_mode.as_str()));
    for attribute in &definition.attribute_definitions {
        let kind = ScalarAttributeType::from(attribute.attribute_type.as_str());
        request = request.attribute_definitions(
            AttributeDefinition::builder().attribute_name(&attribute.attribute_name).attribute_type(kind).build()?,
        );
    }
    for index in &definition.global_secondary_indexes {
        let attributes = &index.projection.non_key_attributes;
        let projection = Projection::builder()
            .projection_type(ProjectionType::from(index.projection.projection_type.as_str()))
            .set_non_key_attributes((!attributes.is_empty()).then(|| attributes.clone()))
            .build();
        request = request.global_secondary_indexes(
            GlobalSecondaryIndex::builder()
                .index_name(&index.index_name)
                .set_key_schema(Some(key_schema(&index.key_schema)?))
                .projection(projection)
                .build()?,
        );
    }
    Ok(request.set_key_schema(Some(key_schema(&definition.key_schema)?)))
}

fn key_schema(parts: &[KeyPart]) -> Result<Vec<KeySchemaElement>, BuildError> {
    let element = |part: &KeyPart| {
        let kind = KeyType::from(part.key_type.as_str());
        KeySchemaElement::builder().attribute_name(&part.attribute_name).key_type(kind).build()
    };
    parts.iter().map(element).collect()
}

async fn enable_expiry(client: &Client, name: &str, definition: &TableDefinition) -> Result<(), TableError> {
    let Some(ttl) = definition.time_to_live_specification.as_ref().filter(|ttl| ttl.enabled) else {
        return Ok(());
    };
    if expires(client, name).await? {
        return Ok(());
    }
    let wanted = TimeToLiveSpecification::builder().attribute_name(&ttl.attribute_name).enabled(true).build()?;
    let update = client.update_time_to_live().table_name(name).time_to_live_specification(wanted);
    match update.send().await {
        Ok(_) => Ok(()),
        // Another runner may have done it meanwhile, which DynamoDB calls an error.
        Err(error) => {
            if expires(client, name).await? {
                Ok(())
            } else {
                Err(error.into())
            }
        }
    }
}

async fn expires(client: &Client, name: &str) -> Result<bool, TableError> {
    let answer = client.describe_time_to_live().table_name(name).send().await?;
    let status = answer.time_to_live_description.and_then(|description| description.time_to_live_status);
    Ok(matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)))
}
