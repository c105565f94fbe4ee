//! The contract in OpenAPI 3.1, made from the table of routes and the schemas beside this file.

use serde_json::{Map, Value, json};

use super::routes::{Content, ROUTES, Route};

/// The components; their texts are kept as JSON.
const SCHEMAS: &str = include_str!("schemas.json");

/// The whole document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(route);
    }
    let schemas: Value = serde_json::from_str(SCHEMAS).expect("a test reads it");
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Bedplate",
            "version": "1",
            "summary": "The control plane of a cluster",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "https://127.0.0.1:7431" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas,
        },
    })
}

fn operation(route: &Route) -> Value {
    let role = route.role.map_or("none", |role| role.name());
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "description": format!("Role: {role}."),
        "parameters": parameters(route),
        "responses": responses(route),
    });
    if route.role.is_none() {
        operation["security"] = json!([]);
    }
    if !route.body.is_empty() {
        operation["requestBody"] = json!({ "content": contents(route.body) });
    }
    operation
}

fn operation_id(route: &Route) -> String {
    let words = route.path.split('/').filter(|word| !word.is_empty() && *word != "v1");
    let words: Vec<&str> = words.map(|word| word.trim_matches(['{', '}'])).collect();
    format!("{}_{}", route.method.to_ascii_lowercase(), words.join("_").replace('.', "_"))
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
    let in_query = route.query.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.description,
            "schema": { "type": parameter.kind },
        })
    });
    let key = (route.path == "/v1/jobs" && route.method == "POST").then(|| {
        json!({
            "name": "Idempotency-Key",
            "in": "header",
            "description": "the same key by the same user is the same job",
            "schema": { "type": "string", "maxLength": 128 },
        })
    });
    in_path.chain(in_query).chain(key).collect()
}

fn contents(all: &[Content]) -> Value {
    let mut contents = Map::new();
    for content in all {
        contents.insert(content.media_type.into(), json!({ "schema": reference(content.schema) }));
    }
    Value::Object(contents)
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    let mut expected = json!({ "description": route.summary });
    if let Some(content) = &route.answer.content {
        expected["content"] = contents(std::slice::from_ref(content));
    }
    responses.insert(route.answer.status.to_string(), expected);
    let error = json!({
        "description": "what is wrong, and what to do",
        "content": { "application/json": { "schema": reference("Error") } },
    });
    responses.insert("default".into(), error);
    Value::Object(responses)
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(entries) => entries.iter().for_each(|(key, value)| match value.as_str() {
                Some(text) if key == "$ref" => drop(found.insert(text.to_owned())),
                _ => references(value, found),
            }),
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_schema_that_is_named_exists_and_every_one_is_named() {
        let document = document();
        let mut named = BTreeSet::new();
        references(&document, &mut named);
        let known = document["components"]["schemas"].as_object().unwrap().keys();
        let known: BTreeSet<String> = known.map(|name| format!("#/components/schemas/{name}")).collect();
        assert_eq!(named, known);
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let names: BTreeSet<String> = ROUTES.iter().map(operation_id).collect();
        assert_eq!(names.len(), ROUTES.len());
    }

    #[test]
    fn the_book_has_every_route_with_its_role_and_no_other() {
        let book = include_str!("../../../../../docs/api.md");
        let is_route =
            |line: &&str| ["| `GET", "| `POST", "| `DELETE"].iter().any(|start| line.starts_with(start));
        let in_book: Vec<(&str, &str)> = book
            .lines()
            .filter(is_route)
            .map(|line| {
                let route = line.split('`').nth(1).unwrap();
                (route, line.trim_end_matches(" |").rsplit_once("| ").unwrap().1)
            })
            .collect();
        let in_table: Vec<String> =
            ROUTES.iter().map(|route| format!("{} {}", route.method, route.path)).collect();
        let roles = ROUTES.iter().map(|route| route.role.map_or("none", |role| role.name()));
        let expected: Vec<(&str, &str)> = in_table.iter().map(String::as_str).zip(roles).collect();
        assert_eq!(in_book, expected);
    }

    /// Compares the file of the book with the document, or writes it when `UPDATE_EXPECT` is set.
    #[test]
    fn the_document_in_the_book_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/openapi.json");
        let expected = format!("{}\n", serde_json::to_string_pretty(&document()).unwrap());
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(path, &expected).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(found == expected, "docs/openapi.json is not current; run `UPDATE_EXPECT=1 ./test`");
    }
}
