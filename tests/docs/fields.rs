//! The page of all fields of the admin API, which is generated from the JSON schemas.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::{Map, Value};

use crate::{generated::assert_generated, pages};

const PAGE: &str = "admin-api-fields.md";

const HEAD: &str = "\
# Fields of the admin API

For authors of programs that read `-o json` or the [admin API](admin-api.md): every field of every answer.

- `?` marks a field that may be absent or `null`.
- Each type is described once, below the first answer that has it.

This page is generated from [schema/](schema).
";

/// The answers in the order of the page: their schemas and what they answer.
const ANSWERS: [(&str, &str); 17] = [
    ("status", "Status"),
    ("timelines", "Timelines of a pod"),
    ("timeline-list", "List of timelines"),
    ("why", "Why"),
    ("plan", "Plan"),
    ("holds", "Safety holds"),
    ("approve", "Approval"),
    ("pause", "Pause and resume"),
    ("stop", "Stop and evict"),
    ("outcome", "Outcome"),
    ("handover", "Handover"),
    ("report", "Report of observations"),
    ("gc-status", "Collector"),
    ("gc-graph", "Graph"),
    ("agent-version", "Version of the agent"),
    ("version", "Version"),
    ("check", "Check"),
];

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema[key].as_str().unwrap_or_default()
}

fn members<'a>(schema: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    schema[key].as_array().into_iter().flatten()
}

/// The name of the type that a reference leads to.
fn referenced(schema: &Value) -> Option<&str> {
    text(schema, "$ref").strip_prefix("#/$defs/")
}

/// The type of a field, with links to the types below.
fn type_of(schema: &Value) -> String {
    if let Some(name) = referenced(schema) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(some) = members(schema, "anyOf").find(|it| text(it, "type") != "null") {
        return type_of(some);
    }
    let name = match &schema["type"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        name => name.as_str(),
    };
    match (name, text(schema, "format")) {
        (Some("array"), _) => format!("list of {}", type_of(&schema["items"])),
        (Some("object"), _) if schema["additionalProperties"].is_object() => {
            format!("map of {}", type_of(&schema["additionalProperties"]))
        }
        (Some("string"), "date-time") => "time".to_owned(),
        (name, _) => name.unwrap_or("any").to_owned(),
    }
}

fn is_optional(owner: &Value, name: &str, field: &Value) -> bool {
    let is_null = |it: &Value| it == "null" || text(it, "type") == "null";
    let is_nullable = members(field, "type").chain(members(field, "anyOf")).any(is_null);
    is_nullable || !members(owner, "required").any(|it| it == name)
}

/// Text of a table cell. Comments of the source call `null` `None`.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace("`None`", "`null`")
}

/// The table of the fields.
fn fields(schema: &Value, out: &mut String) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    out.push_str("\n| field | type | meaning |\n|---|---|---|\n");
    for (name, field) in properties {
        let mark = if is_optional(schema, name, field) { "?" } else { "" };
        let _ = writeln!(
            out,
            "| `{name}`{mark} | {} | {} |",
            type_of(field),
            cell(text(field, "description"))
        );
    }
}

/// The value that a variant has in this field.
fn constant(variant: &Value) -> Option<(&str, &str)> {
    let mut properties = variant["properties"].as_object()?.iter();
    properties.find_map(|(name, field)| Some((name.as_str(), field["const"].as_str()?)))
}

/// The tables of the values of an enum: strings, or objects that differ by a field.
fn variants(schema: &Value, out: &mut String) {
    let all: Vec<_> = members(schema, "oneOf").collect();
    if all.is_empty() {
        return;
    }
    let tag = all.iter().find_map(|it| constant(it)).map(|(tag, _)| tag);
    let _ = match tag {
        Some(tag) => writeln!(out, "\n| `{tag}` | meaning | fields |\n|---|---|---|"),
        None => writeln!(out, "\n| value | meaning |\n|---|---|"),
    };
    for variant in all {
        let meaning = cell(text(variant, "description"));
        let (values, fields) = match constant(variant) {
            Some((tag, value)) => (vec![value], variant_fields(variant, tag)),
            None => {
                let value = variant["const"].as_str().into_iter();
                let values = value.chain(members(variant, "enum").filter_map(Value::as_str));
                // A variant with data is an object with one field.
                let field = variant["properties"]
                    .as_object()
                    .into_iter()
                    .flat_map(|fields| fields.keys());
                let values = values.chain(field.map(String::as_str));
                (values.collect(), String::new())
            }
        };
        let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
        let fields = if tag.is_some() {
            format!(" {fields} |")
        } else {
            String::new()
        };
        let _ = writeln!(out, "| {} | {meaning} |{fields}", values.join(", "));
    }
}

fn variant_fields(variant: &Value, tag: &str) -> String {
    let properties = variant["properties"].as_object().into_iter().flatten();
    let fields = properties.filter(|(name, _)| *name != tag).map(|(name, field)| {
        let mark = if is_optional(variant, name, field) { "?" } else { "" };
        format!(
            "`{name}`{mark} ({}): {}",
            type_of(field),
            cell(text(field, "description"))
        )
    });
    fields.collect::<Vec<_>>().join("<br>")
}

fn page() -> String {
    let mut out = HEAD.to_owned();
    let mut described: BTreeMap<String, Value> = BTreeMap::new();
    for (file, title) in ANSWERS {
        let path = pages::root().join(format!("docs/reference/schema/{file}.json"));
        let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let _ = writeln!(
            out,
            "\n## {title}\n\nSchema: [{file}.json](schema/{file}.json). {}",
            text(&schema, "description")
        );
        if schema["type"] == "array" {
            let _ = writeln!(out, "\nA {}.", type_of(&schema));
        }
        fields(&schema, &mut out);
        let types = schema["$defs"].as_object().cloned().unwrap_or_else(Map::new);
        for (name, definition) in types {
            // The same name is another type in another answer.
            match described.get(&name) {
                Some(other) if *other == definition => continue,
                Some(_) => panic!("two types are named {name}: rename one of them by schemars(rename)"),
                None => {}
            }
            let _ = writeln!(out, "\n### {name}\n\n{}", text(&definition, "description"));
            fields(&definition, &mut out);
            variants(&definition, &mut out);
            described.insert(name, definition);
        }
    }
    out
}

#[test]
fn generated_page_of_all_fields_is_up_to_date() {
    assert_generated(PAGE, &page());
}

#[test]
fn every_schema_is_on_the_page_of_fields() {
    for entry in fs::read_dir(pages::root().join("docs/reference/schema")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.strip_suffix(".json").unwrap().to_owned();
        let is_listed = ANSWERS.iter().any(|(file, _)| *file == name) || name == "openapi";
        assert!(is_listed, "{name}.json is missing in ANSWERS");
    }
}

#[test]
fn every_request_of_the_openapi_description_is_on_the_page_of_the_admin_api() {
    let description = fs::read_to_string(pages::root().join("docs/reference/schema/openapi.json")).unwrap();
    let description: Value = serde_json::from_str(&description).unwrap();
    let page = fs::read_to_string(pages::root().join("docs/reference/admin-api.md")).unwrap();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path
                .replace("{namespace}", "NAMESPACE")
                .replace("{name}", "NAME")
                .replace("{uid}", "UID");
            let request = format!("`{} {path}", method.to_uppercase());
            assert!(page.contains(&request), "{request} is not on the page");
        }
    }
}
