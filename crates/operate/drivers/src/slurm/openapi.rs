//! What a slurmrestd can do and how it calls things, read from the OpenAPI document that it serves.
//!
//! Fields of jobs differ by version: `environment` is a map and later a list, `gpus_per_node` becomes `tres_per_node`, a
//! number becomes an object that may be unset or infinite.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The newest version whose forms are known; a newer one is used where there is no other.
const NEWEST_KNOWN: Version = Version(0, 0, 44);
/// References in a schema lead no further.
const DEEPEST: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

/// How a field of a job is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Number,
    /// `{"set": true, "infinite": false, "number": 5}`.
    OptionalNumber,
    Truth,
    List,
    Map,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenApi {
    /// `v0.0.38`.
    pub(super) version: String,
    /// Of accounting; nothing where it is not served.
    pub(super) accounting: Option<String>,
    /// `post /job/submit`, of the chosen version.
    operations: BTreeSet<String>,
    /// The fields of a job that is submitted.
    job: BTreeMap<String, Form>,
}

impl OpenApi {
    /// Nothing where the document describes no Slurm.
    pub(super) fn read(document: &Value) -> Option<Self> {
        let paths = document["paths"].as_object()?;
        let version = newest(paths.keys().filter_map(|path| version_of(path, "/slurm/")))?;
        let accounting = newest(paths.keys().filter_map(|path| version_of(path, "/slurmdb/")));
        let written = |version: Version| format!("v{}.{}.{}", version.0, version.1, version.2);
        let prefix = format!("/slurm/{}", written(version));
        let mut operations = BTreeSet::new();
        for (path, methods) in paths {
            let Some(rest) = path.strip_prefix(&prefix) else { continue };
            for method in methods.as_object().into_iter().flat_map(|methods| methods.keys()) {
                operations.insert(format!("{method} {}", rest.trim_end_matches('/')));
            }
        }
        let body = &paths.get(&format!("{prefix}/job/submit"))?["post"]["requestBody"]["content"]["application/json"]
            ["schema"];
        let job = resolved(document, &resolved(document, body)["properties"]["job"]);
        let fields = job["properties"].as_object()?;
        let job = fields.iter().map(|(name, schema)| (name.clone(), form(document, schema))).collect();
        Some(Self { version: written(version), accounting: accounting.map(written), operations, job })
    }

    pub(super) fn has(&self, operation: &str) -> bool {
        self.operations.contains(operation)
    }

    /// The first of these names that a job has here, and how it is written.
    pub(super) fn field<'a>(&self, names: &[&'a str]) -> Option<(&'a str, Form)> {
        names.iter().find_map(|name| Some((*name, *self.job.get(*name)?)))
    }
}

fn version_of(path: &str, service: &str) -> Option<Version> {
    let version = path.strip_prefix(service)?.strip_prefix('v')?.split('/').next()?;
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    Some(Version(next()?, next()?, next()?))
}

fn newest(versions: impl Iterator<Item = Version>) -> Option<Version> {
    let all: BTreeSet<Version> = versions.collect();
    let known = all.iter().rfind(|version| **version <= NEWEST_KNOWN).copied();
    known.or(all.first().copied())
}

/// The schema itself, where another is referred to.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..DEEPEST {
        let inner = schema["allOf"].get(0).unwrap_or(schema);
        let Some(name) = inner["$ref"].as_str().and_then(|name| name.rsplit('/').next()) else {
            return inner;
        };
        schema = &document["components"]["schemas"][name];
    }
    schema
}

fn form(document: &Value, schema: &Value) -> Form {
    let schema = resolved(document, schema);
    match schema["type"].as_str() {
        Some("integer" | "number") => Form::Number,
        Some("boolean") => Form::Truth,
        Some("array") => Form::List,
        Some("object") if schema["properties"].get("number").is_some() => Form::OptionalNumber,
        Some("object") => Form::Map,
        _ => Form::Text,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// As much of the documents of 22.05 and 23.11 as matters, in their own forms.
    pub(in crate::slurm) fn old() -> OpenApi {
        let fields = json!({
            "name": text(), "account": text(), "comment": text(), "environment": { "type": "object" }, "current_working_directory": text(),
            "gpus_per_node": text(), "nodes": { "type": "array", "items": { "type": "integer" } }, "minimum_nodes": { "type": "boolean" },
            "tasks_per_node": { "type": "integer" }, "tasks": { "type": "integer" }, "cpus_per_task": { "type": "integer" }, "time_limit": { "type": "integer" }, "exclusive": text(),
            "memory_per_node": { "type": "integer" }, "requeue": { "type": "boolean" }, "hold": { "type": "boolean" }, "no_kill": { "type": "boolean" },
            "signal": text(), "open_mode": text(), "begin_time": { "type": "integer" }, "array": text(), "dependency": text(), "standard_output": text(), "partition": text(), "qos": text(),
        });
        OpenApi::read(&document("v0.0.38", fields, false)).unwrap()
    }

    pub(in crate::slurm) fn new() -> OpenApi {
        let optional = json!({ "$ref": "#/components/schemas/v0.0.40_uint32_no_val" });
        let list = json!({ "$ref": "#/components/schemas/v0.0.40_string_array" });
        let fields = json!({
            "name": text(), "account": text(), "comment": text(), "script": text(), "environment": list, "current_working_directory": text(),
            "tres_per_node": text(), "tres_per_job": text(), "nodes": text(), "minimum_nodes": { "type": "integer" }, "maximum_nodes": { "type": "integer" },
            "tasks_per_node": { "type": "integer" }, "tasks": { "type": "integer" }, "cpus_per_task": { "type": "integer" }, "time_limit": optional, "shared": { "type": "array", "items": text() },
            "memory_per_node": optional, "requeue": { "type": "boolean" }, "hold": { "type": "boolean" }, "kill_on_node_fail": { "type": "boolean" },
            "required_nodes": list, "excluded_nodes": list, "required_switches": { "type": "integer" }, "open_mode": { "type": "array" }, "begin_time": optional, "array": text(), "dependency": text(), "standard_output": text(), "partition": text(), "qos": text(),
        });
        OpenApi::read(&document("v0.0.40", fields, true)).unwrap()
    }

    fn text() -> Value {
        json!({ "type": "string" })
    }

    fn document(version: &str, fields: Value, has_nodes: bool) -> Value {
        let submit = json!({ "post": { "requestBody": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/submission" } } } } } });
        let mut paths =
            json!({ "/slurmdb/v0.0.37/jobs/": { "get": {} }, "/slurm/v0.0.36/ping": { "get": {} } });
        paths[format!("/slurm/{version}/job/submit")] = submit;
        paths[format!("/slurm/{version}/jobs/")] = json!({ "get": {} });
        if has_nodes {
            paths[format!("/slurm/{version}/node/{{node_name}}")] = json!({ "get": {}, "post": {} });
        }
        json!({ "paths": paths, "components": { "schemas": {
            "submission": { "type": "object", "properties": { "script": text(), "job": { "$ref": "#/components/schemas/job" } } },
            "job": { "type": "object", "properties": fields },
            "v0.0.40_uint32_no_val": { "type": "object", "properties": { "set": {}, "infinite": {}, "number": {} } },
            "v0.0.40_string_array": { "type": "array", "items": text() },
        } } })
    }

    #[test]
    fn the_newest_known_version_and_its_fields_are_found() {
        let (old, new) = (old(), new());
        assert_eq!((old.version.as_str(), old.accounting.as_deref()), ("v0.0.38", Some("v0.0.37")));
        assert_eq!(new.version, "v0.0.40");
        assert_eq!(old.field(&["gpus_per_node", "tres_per_node"]), Some(("gpus_per_node", Form::Text)));
        assert_eq!(new.field(&["gpus_per_node", "tres_per_node"]), Some(("tres_per_node", Form::Text)));
        assert_eq!(old.field(&["environment"]), Some(("environment", Form::Map)));
        assert_eq!(new.field(&["environment"]), Some(("environment", Form::List)));
        assert_eq!(new.field(&["time_limit"]), Some(("time_limit", Form::OptionalNumber)));
        assert!(
            new.has("post /node/{node_name}") && !old.has("post /node/{node_name}") && old.has("get /jobs")
        );
    }

    #[test]
    fn a_document_of_something_else_is_none() {
        assert_eq!(OpenApi::read(&json!({ "paths": { "/pets": {} } })), None);
        assert_eq!(OpenApi::read(&json!([])), None);
        let looping = json!({ "paths": { "/slurm/v0.0.38/job/submit": { "post": { "requestBody": { "content": { "application/json": { "schema": { "$ref": "#/a" } } } } } } }, "components": { "schemas": { "a": { "$ref": "#/a" } } } });
        assert_eq!(OpenApi::read(&looping), None);
    }
}
