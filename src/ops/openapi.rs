//! The description of the admin API in docs/reference/schema/openapi.json. Its answers are the JSON schemas beside it.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    admin::{
        STATUS, TIMELINES, collector,
        handover::{HANDOVER, HandoverRequest},
        holds::{APPROVE, ApprovalRequest, HOLDS},
        pause::{PAUSE, PauseRequest, RESUME},
        plan::PLAN,
        report::REPORT,
        stop::{OUTCOMES, PODS, StopRequest},
        version::VERSION,
        why::WHY,
    },
    schema::assert_stored,
};

/// A request, and the schema of its answer.
struct Operation {
    path: String,
    summary: &'static str,
    /// Name of the parameter in the query.
    query: Option<&'static str>,
    /// Schema of the body of a POST request.
    body: Option<Value>,
    is_post: bool,
    answer: &'static str,
}

fn get(path: impl Into<String>, answer: &'static str, summary: &'static str) -> Operation {
    Operation {
        path: path.into(),
        summary,
        query: None,
        body: None,
        is_post: false,
        answer,
    }
}

fn post(path: impl Into<String>, answer: &'static str, summary: &'static str, body: Option<Value>) -> Operation {
    Operation {
        body,
        is_post: true,
        ..get(path, answer, summary)
    }
}

fn with_query(operation: Operation, name: &'static str) -> Operation {
    Operation {
        query: Some(name),
        ..operation
    }
}

fn request<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("$schema");
    schema.to_value()
}

fn operations() -> Vec<Operation> {
    let stop = request::<StopRequest>;
    vec![
        get(STATUS, "status", "Status of the agent"),
        get(VERSION, "agent-version", "Versions of agent, runtime and API server"),
        get(TIMELINES, "timeline-list", "Known terminations"),
        get(
            format!("{TIMELINES}/{{uid}}"),
            "timelines",
            "Traces of a pod by its UID",
        ),
        get(
            format!("{TIMELINES}/{{namespace}}/{{name}}"),
            "timelines",
            "Traces of pods of a name",
        ),
        with_query(get(WHY, "why", "Why an object still exists"), "of"),
        with_query(get(PLAN, "plan", "What the agent would do with a pod"), "pod"),
        get(HOLDS, "holds", "Safety holds and approvals"),
        with_query(
            get(
                format!("{OUTCOMES}/{{uid}}"),
                "outcome",
                "Outcome of a stop or eviction",
            ),
            "wait",
        ),
        with_query(get(REPORT, "report", "Observed terminations"), "since"),
        get(collector::STATUS, "gc-status", "Status of the garbage collector"),
        with_query(get(collector::GRAPH, "gc-graph", "Owners and dependents"), "uid"),
        post(
            format!("{PODS}/{{namespace}}/{{name}}/stop"),
            "stop",
            "Stop a pod by its name",
            Some(stop()),
        ),
        post(
            format!("{PODS}/{{uid}}/stop"),
            "stop",
            "Stop a pod by its UID",
            Some(stop()),
        ),
        post(
            format!("{PODS}/{{namespace}}/{{name}}/evict"),
            "stop",
            "Evict a pod by its name",
            Some(stop()),
        ),
        post(
            format!("{PODS}/{{uid}}/evict"),
            "stop",
            "Evict a pod by its UID",
            Some(stop()),
        ),
        post(
            APPROVE,
            "approve",
            "Approve a safety hold",
            Some(request::<ApprovalRequest>()),
        ),
        post(PAUSE, "pause", "Pause the agent", Some(request::<PauseRequest>())),
        post(RESUME, "pause", "End the pause", None),
        post(
            HANDOVER,
            "handover",
            "Hand the node to a kubelet",
            Some(request::<HandoverRequest>()),
        ),
    ]
}

// === impl Operation ===

impl Operation {
    fn parameters(&self) -> Vec<Value> {
        let in_path = self
            .path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let string = json!({ "type": "string" });
        let in_path = in_path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": string }));
        // An answer about one object needs its name; the others have a default.
        let is_required = |name: &str| matches!(name, "of" | "pod");
        let in_query = self
            .query
            .map(|name| json!({ "name": name, "in": "query", "required": is_required(name), "schema": string }));
        in_path.chain(in_query).collect()
    }

    fn to_value(&self) -> Value {
        let content = |schema: Value| json!({ "application/json": { "schema": schema } });
        let mut operation = json!({
            "summary": self.summary,
            "parameters": self.parameters(),
            "responses": {
                "200": {
                    "description": "The answer.",
                    "content": content(json!({ "$ref": format!("{}.json", self.answer) })),
                },
                "default": { "$ref": "#/components/responses/Error" },
            },
        });
        if let Some(body) = &self.body {
            operation["requestBody"] = json!({ "content": content(body.clone()) });
        }
        operation
    }
}

#[test]
fn openapi_description_in_the_docs_has_every_request() {
    let mut paths = Map::new();
    for operation in operations() {
        let method = if operation.is_post { "post" } else { "get" };
        paths.insert(operation.path.clone(), json!({ method: operation.to_value() }));
    }
    let error = json!({ "type": "object", "properties": { "error": { "type": "string" } }, "required": ["error"] });
    let description = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "pod-teardown admin API",
            "description": "Served on a Unix socket, see --socket.",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "servers": [{ "url": "http://localhost" }],
        "paths": paths,
        "components": { "responses": { "Error": {
            "description": "The request is refused or has failed.",
            "content": { "application/json": { "schema": error } },
        } } },
    });
    assert_stored("openapi", &description);
}
