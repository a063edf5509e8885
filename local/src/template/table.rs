//! The table as CloudFormation describes it; fields have CloudFormation's names.

use serde::Deserialize;

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TableDefinition {
    /// How it is paid.
    pub billing_mode: String,
    /// The attributes that keys are made of.
    pub attribute_definitions: Vec<AttributeDefinition>,
    /// The table's own key.
    pub key_schema: Vec<KeyPart>,
    /// Its indexes.
    #[serde(default)]
    pub global_secondary_indexes: Vec<IndexDefinition>,
    /// What expires by itself.
    pub time_to_live_specification: Option<TtlDefinition>,
}

/// An attribute of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AttributeDefinition {
    /// Its name.
    pub attribute_name: String,
    /// `S`, `N` or `B`.
    pub attribute_type: String,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct KeyPart {
    /// The attribute.
    pub attribute_name: String,
    /// `HASH` or `RANGE`.
    pub key_type: String,
}

/// An index.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IndexDefinition {
    /// Its name.
    pub index_name: String,
    /// Its key.
    pub key_schema: Vec<KeyPart>,
    /// What it repeats of the items.
    pub projection: ProjectionDefinition,
}

/// What an index repeats of the items.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ProjectionDefinition {
    /// `ALL`, `KEYS_ONLY` or `INCLUDE`.
    pub projection_type: String,
    /// With `INCLUDE`: the attributes besides the keys.
    #[serde(default)]
    pub non_key_attributes: Vec<String>,
}

/// The attribute whose time ends an item.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TtlDefinition {
    /// Its name.
    pub attribute_name: String,
    /// Whether it is in force.
    pub enabled: bool,
}
