//! The JSON schemas of the answers on the admin socket, in docs/reference/schema.

use std::{env, fs, path::Path};

use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde::Serialize;

use crate::ops::{
    admin::{holds::Approved, pause::Pause, stop::StopOutcome},
    check,
    gc_status::GcReport,
    report,
    status::StatusReport,
};
use crate::{
    explanation::Explanation,
    handover::guard::{HandoverResult, holds::SafetyHolds},
    model::trace::Trace,
    teardown::plan::Plan,
    workers::stop::StopAccepted,
};

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/schema");

/// The schema of what this type is serialized to.
fn schema<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}

#[test]
fn schemas_in_the_docs_are_those_of_the_answers() {
    let schemas = [
        ("approve", schema::<Approved>()),
        ("check", schema::<check::Report>()),
        ("gc-status", schema::<GcReport>()),
        ("handover", schema::<HandoverResult>()),
        ("holds", schema::<SafetyHolds>()),
        ("outcome", schema::<StopOutcome>()),
        ("pause", schema::<Pause>()),
        ("plan", schema::<Plan>()),
        ("report", schema::<report::Report>()),
        ("status", schema::<StatusReport>()),
        ("stop", schema::<StopAccepted>()),
        ("timelines", schema::<Vec<Trace>>()),
        ("why", schema::<Explanation>()),
    ];
    for (name, schema) in schemas {
        assert_stored(name, &schema);
    }
}

/// Asserts that the file in the docs has this value.
fn assert_stored(name: &str, value: &impl Serialize) {
    let path = Path::new(DIR).join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(value).unwrap() + "\n";
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(DIR).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == stored,
        "{path:?} is not that of the source: run UPDATE_DOCS=1 cargo test --lib in_the_docs"
    );
}
