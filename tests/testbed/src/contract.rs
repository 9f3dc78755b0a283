//! What the agent relies on of an API server: requests with the answers that the real one gives, in the tables of
//! `contract/`. They are sent to the real one and to the one in memory, which has to answer the same.
//!
//! A table is read line by line; `//` begins a comment.
//!
//! | Line | Meaning |
//! |---|---|
//! | `== NAME` | A claim begins, with a namespace and two node names of its own; `(real server only)` may follow |
//! | `[until] [node] METHOD PATH [BODY]` | A request. Methods are also `MERGE`, `STRATEGIC`, `JSON` (patches) and `WATCH` |
//! | `map`, `pod`, `event`, `controller` `NAME [JSON]` | A POST of such an object, changed by a merge patch |
//! | `thing VERSION NAME [JSON]` | The same for an object of the claim's own kind |
//! | `define SCOPE VERSION… [JSON]` | Defines that kind, with these subresources, and waits until it is served |
//! | `with HEADER VALUE` | A header of the next request |
//! | `-> CODE [REASON] [JSON]` | The last answer. Without such a line it has to be a success |
//! | `-> 200 names A B` | The names of a list's items |
//! | `header NAME VALUE` | How a header of the last answer begins |
//! | `> TYPE NAME` or `> TYPE JSON` or `> end` | The next event of the last watch, or its end |
//! | `forget history` | The server compacts its history |
//!
//! `until` repeats the request until the answer is the expected one: the real server follows some writes in its own time.
//! `node` sends it as the claim's node, `stranger` with an unknown token. `NAME :=` keeps an answer or event. A path
//! without a slash is below the claim's namespace. `<x.uid>`, `<x.rv>`, `<x.continue>` and `<x.a.b>` stand for fields of
//! what was kept as `x`, `<x>` for all of it, `<owner NAME UID>` for an owner reference; more names are in [`Run::new`].
//! A body of several values is the first one, changed by the others as merge patches.
//!
//! An expected object needs its own fields only; null means that a field is absent. A list is compared item by item, or by
//! `{"any": [ITEM…], "len": N}`. Of texts, `*` is any, `!x` another than x, `~x` one that contains x, `>x` and `>=x` a
//! greater number, `+n` a time in n seconds.

mod expected;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::future::LocalBoxFuture;
use http::{HeaderName, Method};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time};

use crate::{
    api::ApiServer,
    claims::{self, Limits},
    owner_references::TEST_FINALIZER,
    proto,
    rest::{Answer, Call, Client, Error, Patch, Watch},
    things::{DEFINITIONS, definition},
};

/// The slowest claims wait for a server that waits 3 s.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(60);

/// How long `until` and an event are waited for.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

const REAL_ONLY: &str = " (real server only)";

macro_rules! tables {
    ($($name:literal),*) => { [$(($name, include_str!(concat!("../contract/", $name, ".txt")))),*] };
}

const TABLES: [(&str, &str); 9] = tables!(
    "lists",
    "watches",
    "writes",
    "status",
    "deletion",
    "nodes",
    "discovery",
    "metadata",
    "custom"
);

/// Which claims a server has to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claims {
    /// Those about every server.
    Common,
    /// Also those about what only the real one serves.
    All,
}

/// One claim: its name, its lines, and where they are.
struct Claim {
    name: String,
    lines: Vec<(usize, &'static str)>,
    real_only: bool,
}

/// A claim that is being checked.
struct Run<'a> {
    api: &'a dyn ApiServer,
    clients: BTreeMap<&'static str, Client>,
    kept: BTreeMap<String, Value>,
    headers: Vec<(HeaderName, String)>,
    answer: Option<Answer>,
    watch: Option<Watch>,
}

/// A server that is started for the first claim.
type Server<S> = OnceCell<S>;

/// The main function of a test binary: starts a server, checks the claims, ends the server.
pub fn main<S: ApiServer + 'static>(
    which: Claims,
    start: fn() -> LocalBoxFuture<'static, Result<S>>,
) -> Result<ExitCode> {
    let mut claims = Vec::new();
    for (table, text) in TABLES {
        for claim in read(table, text)? {
            if which == Claims::Common && claim.real_only {
                continue;
            }
            let index = claims.len();
            let lines = claim.lines;
            claims.push(claims::Claim::new(claim.name, move |server: &Server<S>| {
                Box::pin(async move {
                    let server = server.get_or_try_init(start).await?;
                    Run::new(server, index).await?.check(&lines).await
                })
            }));
        }
    }
    // One after another: some claims make the server forget its history, under everybody.
    let limits = Limits {
        at_once: 1,
        time: CLAIM_TIMEOUT,
    };
    claims::run(&limits, Server::new(), claims, async |_| Ok(()))
}

fn read(table: &str, text: &'static str) -> Result<Vec<Claim>> {
    let mut claims: Vec<Claim> = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if let Some(name) = line.strip_prefix("== ") {
            claims.push(Claim {
                name: format!("{table}::{}", name.trim_end_matches(REAL_ONLY)),
                lines: Vec::new(),
                real_only: name.ends_with(REAL_ONLY),
            });
        } else if !line.is_empty() && !line.starts_with("//") {
            let claim = claims.last_mut();
            let claim = claim.with_context(|| format!("{table}:{number} is before the first claim"))?;
            claim.lines.push((number, line));
        }
    }
    Ok(claims)
}

impl<'a> Run<'a> {
    async fn new(api: &'a dyn ApiServer, index: usize) -> Result<Self> {
        let admin = api.admin()?;
        let (ns, node, other) = (
            format!("claim-{index}"),
            format!("node-{index}"),
            format!("elsewhere-{index}"),
        );
        let namespace = json!({"metadata": {"name": ns}});
        admin.create("/api/v1/namespaces", &namespace).await?.ok()?;
        let group = format!("{ns}.test");
        let leases = "/apis/coordination.k8s.io/v1/namespaces";
        let (meta, protobuf) = ("g=meta.k8s.io;v=v1", "application/vnd.kubernetes.protobuf");
        let kept = [
            ("leases", format!("{leases}/{ns}/leases")),
            ("node-leases", format!("{leases}/kube-node-lease/leases")),
            (
                "claims",
                format!("/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims"),
            ),
            ("definitions", DEFINITIONS.to_owned()),
            ("definition", format!("{DEFINITIONS}/things.{group}")),
            ("one", format!("application/json;as=PartialObjectMetadata;{meta}")),
            ("list", format!("application/json;as=PartialObjectMetadataList;{meta}")),
            ("protobuf", protobuf.to_owned()),
            ("protobuf-one", format!("{protobuf};as=PartialObjectMetadata;{meta}")),
            (
                "protobuf-list",
                format!("{protobuf};as=PartialObjectMetadataList;{meta}"),
            ),
            (
                "aggregated",
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList".to_owned(),
            ),
            ("held", TEST_FINALIZER.to_owned()),
            ("group", group),
            ("ns", ns),
            ("other", other),
            ("node", node.clone()),
        ];
        let stranger = admin.with_token("never-heard-of");
        Ok(Run {
            api,
            clients: [("admin", admin), ("node", api.node(&node)?), ("stranger", stranger)].into(),
            kept: kept.map(|(name, text)| (name.to_owned(), Value::String(text))).into(),
            headers: Vec::new(),
            answer: None,
            watch: None,
        })
    }

    async fn check(mut self, lines: &[(usize, &str)]) -> Result<()> {
        for (index, (number, line)) in lines.iter().enumerate() {
            let next = lines.get(index + 1).map(|(_, line)| *line);
            let expectation = next.and_then(|line| line.strip_prefix("-> "));
            self.step(line, expectation)
                .await
                .with_context(|| format!("line {number}: {line}"))?;
        }
        Ok(())
    }

    /// Does one line; `expectation` is that of the line after it.
    async fn step(&mut self, line: &str, expectation: Option<&str>) -> Result<()> {
        let line = self.fill(line)?;
        if let Some(expected) = line.strip_prefix("-> ") {
            return expected::answer(expected, self.answer.as_ref().context("there is no answer")?);
        }
        let (name, line) = line
            .split_once(" := ")
            .map_or((None, line.as_str()), |(name, line)| (Some(name), line));
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let came = match word {
            "forget" => return self.api.forget_history().await,
            "with" => {
                let (header, value) = rest.split_once(' ').context("a header without a value")?;
                self.headers.push((header.parse()?, value.to_owned()));
                return Ok(());
            }
            "header" => {
                let (header, start) = rest.split_once(' ').context("a header without a value")?;
                let value = match (&self.answer, &self.watch) {
                    (Some(answer), _) => answer.header(header),
                    (None, Some(watch)) => watch.content_type(),
                    (None, None) => bail!("there is no answer"),
                };
                ensure!(value.starts_with(start), "it is {value:?}");
                return Ok(());
            }
            "define" => return self.define(rest).await,
            ">" => {
                let watch = self.watch.as_mut().context("there is no watch")?;
                let event = time::timeout(STEP_TIMEOUT, async {
                    loop {
                        let event = next_event(watch).await?;
                        // A server sends one at any time.
                        let is_other = event.as_ref().is_some_and(|(kind, _)| kind == "BOOKMARK");
                        if !is_other || rest.starts_with("BOOKMARK") {
                            return anyhow::Ok(event);
                        }
                    }
                })
                .await
                .context("no event came")??;
                expected::event(rest, event.as_ref())?;
                event.map(|(_, object)| object).unwrap_or_default()
            }
            _ => self.request(line, expectation).await?,
        };
        if let Some(name) = name {
            self.kept.insert(name.to_owned(), came);
        }
        Ok(())
    }

    /// Sends a request, and returns the body of its answer.
    async fn request(&mut self, line: &str, expectation: Option<&str>) -> Result<Value> {
        let headers = std::mem::take(&mut self.headers);
        let expectation = expectation.map(|line| self.fill(line)).transpose()?;
        let (repeat, line) = line.strip_prefix("until ").map_or((false, line), |line| (true, line));
        let (client, line) = ["node", "stranger"]
            .into_iter()
            .find_map(|name| Some((name, line.strip_prefix(name)?.strip_prefix(' ')?)))
            .unwrap_or(("admin", line));
        let (method, path, body) = self.parse(line)?;
        let client = &self.clients[client];
        let call = || {
            let call = match method.as_str() {
                "WATCH" => client.call(Method::GET, &path).options(&[("watch", "true")]),
                "MERGE" | "STRATEGIC" | "JSON" => {
                    let kind = match method.as_str() {
                        "MERGE" => Patch::Merge,
                        "STRATEGIC" => Patch::Strategic,
                        _ => Patch::Json,
                    };
                    client
                        .call(Method::PATCH, &path)
                        .body(kind.content_type(), body.clone().into_bytes())
                }
                method => {
                    let call = client.call(method.parse().unwrap_or_default(), &path);
                    match body.as_str() {
                        "" => call,
                        body => call.body("application/json", body.as_bytes().to_vec()),
                    }
                }
            };
            headers
                .iter()
                .fold(call, |call: Call<'_>, (name, value)| call.header(name.clone(), value))
        };
        if method == "WATCH" {
            match call().stream().await {
                Ok(watch) => (self.answer, self.watch) = (None, Some(watch)),
                Err(Error::Refused { answer, .. }) if expectation.is_some() => self.answer = Some(*answer),
                Err(error) => return Err(error.into()),
            }
            return Ok(Value::Null);
        }
        let begun = time::Instant::now();
        let answer = loop {
            let mut answer = call().send().await?;
            if answer
                .header("content-type")
                .starts_with("application/vnd.kubernetes.protobuf")
            {
                answer.body = proto::to_json(&answer.bytes)?;
            }
            let checked = match &expectation {
                Some(expected) => expected::answer(expected, &answer),
                None => answer.clone().ok().map(drop).map_err(Into::into),
            };
            match checked {
                Err(error) if !repeat || begun.elapsed() > STEP_TIMEOUT => return Err(error),
                Err(_) => time::sleep(Duration::from_millis(20)).await,
                Ok(()) => break answer,
            }
        };
        let etag = answer.header("etag").to_owned();
        self.kept.insert("header".to_owned(), json!({ "etag": etag }));
        let body = answer.body.clone();
        self.answer = Some(answer);
        Ok(body)
    }

    /// Method, path and body of a request.
    fn parse(&self, line: &str) -> Result<(String, String, String)> {
        let mut words = line.splitn(3, ' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().context("no path")?);
        let rest = words.next().unwrap_or_default();
        let containers = json!([{"name": "main", "image": "example.test/main"}]);
        let metadata = json!({"name": path, "namespace": self.kept["ns"]});
        let (collection, object) = match method {
            "map" => ("configmaps", json!({"metadata": metadata})),
            "pod" => (
                "pods",
                json!({"metadata": metadata, "spec": {"nodeName": self.kept["node"], "containers": containers}}),
            ),
            "event" => {
                let about = json!({"kind": "Pod", "namespace": self.kept["ns"], "name": "p", "uid": path});
                (
                    "events",
                    json!({"metadata": metadata, "involvedObject": about, "reason": "Tested", "type": "Normal"}),
                )
            }
            "controller" => {
                let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": containers}});
                let spec = json!({"replicas": 0, "selector": {"app": "a"}, "template": template});
                ("replicationcontrollers", json!({"metadata": metadata, "spec": spec}))
            }
            "thing" => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let group = text(&self.kept["group"]);
                let thing =
                    json!({"apiVersion": format!("{group}/{path}"), "kind": "Thing", "metadata": {"name": name}});
                return Ok(("POST".to_owned(), text(&self.kept[path]), merged(Some(thing), rest)?));
            }
            method => {
                let path = if path.starts_with('/') {
                    path.to_owned()
                } else {
                    format!("/api/v1/namespaces/{}/{path}", text(&self.kept["ns"]))
                };
                let body = match rest.strip_prefix("raw ") {
                    Some(raw) => raw.to_owned(),
                    None => merged(None, rest)?,
                };
                return Ok((method.to_owned(), path, body));
            }
        };
        let path = format!("/api/v1/namespaces/{}/{collection}", text(&self.kept["ns"]));
        Ok(("POST".to_owned(), path, merged(Some(object), rest)?))
    }

    /// Defines the claim's own kind: scope, versions, and subresources if there are any.
    async fn define(&mut self, line: &str) -> Result<()> {
        let (line, subresources) = line
            .split_once(" {")
            .map_or((line, None), |(line, json)| (line, Some(json)));
        let mut words = line.split(' ');
        let namespaced = words.next() == Some("Namespaced");
        let versions: Vec<&str> = words.collect();
        let group = text(&self.kept["group"]);
        let mut definition = definition(&group, namespaced, &versions);
        if let Some(json) = subresources {
            definition["spec"]["versions"][0]["subresources"] = serde_json::from_str(&format!("{{{json}"))?;
        }
        self.clients["admin"].create(DEFINITIONS, &definition).await?.ok()?;
        for version in versions {
            let namespace = if namespaced {
                format!("namespaces/{}/", text(&self.kept["ns"]))
            } else {
                String::new()
            };
            let path = format!("/apis/{group}/{version}/{namespace}things");
            self.kept.insert(version.to_owned(), path.as_str().into());
            self.request(&format!("until GET {path}"), Some("200")).await?;
        }
        Ok(())
    }

    /// The line with all that is written as `<…>` filled in.
    fn fill(&self, line: &str) -> Result<String> {
        let mut filled = String::new();
        let mut rest = line;
        while let Some((before, after)) = rest.split_once('<') {
            let (name, after) = after.split_once('>').context("a < without a >")?;
            filled.push_str(before);
            filled.push_str(&self.value_of(name).with_context(|| format!("there is no <{name}>"))?);
            rest = after;
        }
        Ok(filled + rest)
    }

    fn value_of(&self, name: &str) -> Option<String> {
        if let Some((owner, uid)) = name.strip_prefix("owner ").and_then(|it| it.split_once(' ')) {
            return Some(json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}).to_string());
        }
        let mut path = name.split('.');
        let mut value = self.kept.get(path.next()?)?;
        for field in path {
            value = match field {
                "uid" | "continue" => &value["metadata"][field],
                "rv" => &value["metadata"]["resourceVersion"],
                field => &value[field],
            };
        }
        (!value.is_null()).then(|| text(value))
    }
}

/// The next event of a watch: its type and object.
async fn next_event(watch: &mut Watch) -> Result<Option<(String, Value)>> {
    if watch.content_type().starts_with("application/json") {
        let event = watch.next().await?;
        return Ok(event.map(|event| (format!("{:?}", event.kind).to_uppercase(), event.object)));
    }
    match watch.next_message().await? {
        Some((change, object)) => Ok(Some((change, proto::to_json(&object)?))),
        None => Ok(None),
    }
}

/// The first of some JSON values, changed by the others as merge patches.
fn merged(first: Option<Value>, patches: &str) -> Result<String> {
    let mut value = first;
    for patch in serde_json::Deserializer::from_str(patches).into_iter::<Value>() {
        let patch = patch.context("a body that is no JSON")?;
        match &mut value {
            Some(value) => json_patch::merge(value, &patch),
            None => value = Some(patch),
        }
    }
    Ok(value.map(|value| value.to_string()).unwrap_or_default())
}

/// A text without its quotes, anything else as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_claims_whose_names_are_theirs_alone() -> Result<()> {
        let mut names = std::collections::BTreeSet::new();
        for (table, text) in TABLES {
            let claims = read(table, text)?;
            assert!(!claims.is_empty(), "{table} claims nothing");
            for claim in claims {
                assert!(!claim.lines.is_empty(), "{} claims nothing", claim.name);
                assert!(names.insert(claim.name.clone()), "{} is there twice", claim.name);
            }
        }
        Ok(())
    }
}
