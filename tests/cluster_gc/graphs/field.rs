//! Graphs as objects of a real API server.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::rest::{Client, Patch};

use super::{
    model::{Live, World},
    plan::{KINDS, Kind, Plan, Policy, Reference, Space, Target},
};
use crate::scene::{TEST_FINALIZER, in_namespace};

/// The namespace that all graphs share.
pub const OTHER: &str = "other";
const LABEL: &str = "graph";
/// Controllers remove finalizers concurrently, so a write may meet a conflict.
const TRIES: usize = 20;

/// A plan with its objects.
pub struct Graph {
    pub plan: Plan,
    pub name: String,
    /// The references of each object, as they were created.
    owners: Vec<Vec<Value>>,
}

impl Kind {
    pub fn resource(self) -> &'static str {
        match self {
            Self::Map => "configmaps/v1",
            Self::Secret => "secrets/v1",
            Self::Account => "serviceaccounts/v1",
            Self::Role => "clusterroles.rbac.authorization.k8s.io/v1",
            Self::Leaf => "things.leaf.test/v1",
            Self::Root => "things.root.test/v1",
        }
    }

    /// apiVersion and kind.
    pub fn called(self, old: bool) -> (&'static str, &'static str) {
        match self {
            Self::Map => ("v1", "ConfigMap"),
            Self::Secret => ("v1", "Secret"),
            Self::Account => ("v1", "ServiceAccount"),
            Self::Role => ("rbac.authorization.k8s.io/v1", "ClusterRole"),
            Self::Leaf if old => ("leaf.test/v1beta1", "Thing"),
            Self::Leaf => ("leaf.test/v1", "Thing"),
            Self::Root => ("root.test/v1", "Thing"),
        }
    }
}

impl Graph {
    /// Creates all its objects, one after the other, in its own namespace.
    pub async fn make(admin: &Client, plan: Plan, name: String) -> Result<Self> {
        admin
            .create("/api/v1/namespaces", &json!({"metadata": {"name": name}}))
            .await?
            .ok()?;
        let mut graph = Self {
            plan,
            name,
            owners: Vec::new(),
        };
        let mut uids: Vec<String> = Vec::new();
        for number in 0..graph.plan.things.len() {
            let thing = &graph.plan.things[number];
            let early = thing.owners.len() - thing.late;
            let owners = thing.owners[..early].iter().enumerate();
            let owners: Vec<Value> = owners
                .map(|(at, owner)| graph.reference(&uids, number, at, owner))
                .collect();
            let initial = thing.finalizers;
            let mut finalizers = Vec::new();
            for (has, finalizer) in [
                (initial.with_finalizer, TEST_FINALIZER),
                (initial.orphan, "orphan"),
                (initial.foreground, "foregroundDeletion"),
            ] {
                finalizers.extend(has.then_some(finalizer));
            }
            let (version, kind) = thing.kind.called(false);
            let object = json!({"apiVersion": version, "kind": kind, "metadata": {
                "name": graph.called(number), "labels": {LABEL: graph.name},
                "ownerReferences": owners, "finalizers": finalizers,
            }});
            let made = admin.create(&graph.collection(number), &object).await?.ok()?;
            uids.push(made["metadata"]["uid"].as_str().context("no UID")?.to_owned());
            graph.owners.push(owners);
        }
        for number in 0..graph.plan.things.len() {
            let early = graph.owners[number].len();
            for at in early..graph.plan.things[number].owners.len() {
                let owner = &graph.plan.things[number].owners[at];
                let reference = graph.reference(&uids, number, at, owner);
                graph.owners[number].push(reference);
            }
            if graph.owners[number].len() > early {
                let patch = json!({"metadata": {"ownerReferences": graph.owners[number]}});
                admin.patch(&graph.path(number), Patch::Merge, &patch).await?.ok()?;
            }
        }
        Ok(graph)
    }

    fn called(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    fn collection(&self, number: usize) -> String {
        let thing = &self.plan.things[number];
        let namespace = match thing.space {
            Space::Own => &self.name,
            Space::Other => OTHER,
            Space::Cluster => "",
        };
        in_namespace(thing.kind.resource(), namespace)
    }

    fn path(&self, number: usize) -> String {
        format!("{}/{}", self.collection(number), self.called(number))
    }

    fn reference(&self, uids: &[String], number: usize, at: usize, owner: &Reference) -> Value {
        let never = || {
            format!(
                "00000000-0000-4000-8000-{number:04}{at:04}{:04}",
                self.plan.seed % 10_000
            )
        };
        let called = |target: usize| self.called(target);
        let kind_of = |target: usize| self.plan.things[target].kind.called(owner.old);
        let ((version, kind), name, uid) = match owner.target {
            Target::Thing(target) => (kind_of(target), called(target), uids[target].clone()),
            Target::OtherName(target) => (
                kind_of(target),
                format!("{}-wrong", called(target)),
                uids[target].clone(),
            ),
            Target::OtherKind(target, kind) => (kind.called(owner.old), called(target), uids[target].clone()),
            Target::Never(kind) => (kind.called(owner.old), "never".to_owned(), never()),
            Target::Unserved => (("absent.test/v1", "Nothing"), "never".to_owned(), never()),
        };
        json!({
            "apiVersion": version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": owner.blocking,
        })
    }

    /// Deletes an object. Returns whether it existed.
    pub async fn delete(&self, admin: &Client, number: usize, policy: Policy) -> Result<bool> {
        let options = match policy {
            Policy::Silent => json!({}),
            policy => json!({"propagationPolicy": format!("{policy:?}")}),
        };
        let answer = admin.delete(&self.path(number), Some(&options)).await?;
        if answer.code() == 404 {
            return Ok(false);
        }
        answer.ok()?;
        Ok(true)
    }

    /// Removes the test finalizer from an object, if it exists.
    pub async fn remove_finalizer(&self, admin: &Client, number: usize) -> Result<()> {
        for _ in 0..TRIES {
            let answer = admin.get(&self.path(number)).await?;
            if answer.code() == 404 {
                return Ok(());
            }
            let metadata = &answer.ok()?["metadata"];
            let mut finalizers = metadata["finalizers"].as_array().cloned().unwrap_or_default();
            finalizers.retain(|it| it != TEST_FINALIZER);
            let patch = json!({"metadata": {
                "resourceVersion": metadata["resourceVersion"], "finalizers": finalizers,
            }});
            let answer = admin.patch(&self.path(number), Patch::Merge, &patch).await?;
            match answer.code() {
                404 => return Ok(()),
                409 => {}
                _ => return Ok(answer.ok().map(drop)?),
            }
        }
        anyhow::bail!("{} changes all the time", self.path(number))
    }

    /// The graph's state, from all objects that were read.
    pub fn world(&self, all: &HashMap<String, Value>) -> Result<World> {
        (0..self.plan.things.len())
            .map(|number| {
                all.get(&self.called(number))
                    .map(|it| self.live(number, it))
                    .transpose()
            })
            .collect()
    }

    fn live(&self, number: usize, object: &Value) -> Result<Live> {
        let metadata = &object["metadata"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let finalizers = list(&metadata["finalizers"]);
        let has = |finalizer: &str| finalizers.iter().any(|it| it == finalizer);
        let mut owners = Vec::new();
        for reference in list(&metadata["ownerReferences"]) {
            let is_it = |written: &Value| {
                let same = |field: &str| written[field] == reference[field];
                ["apiVersion", "kind", "name", "uid"].into_iter().all(same)
            };
            let at = self.owners[number].iter().position(is_it);
            let at =
                at.with_context(|| format!("{} names {reference}, which is not in the plan", self.called(number)))?;
            owners.push((at, reference["blockOwnerDeletion"] == true));
        }
        // The order has no meaning.
        owners.sort_unstable();
        Ok(Live {
            deleting: metadata["deletionTimestamp"].is_string(),
            orphan: has("orphan"),
            foreground: has("foregroundDeletion"),
            with_finalizer: has(TEST_FINALIZER),
            owners,
            lifted: false,
        })
    }
}

pub async fn read(admin: &Client) -> Result<HashMap<String, Value>> {
    let mut all = HashMap::new();
    for kind in KINDS {
        let path = in_namespace(kind.resource(), "");
        let list = admin.list(&path, &[("labelSelector", LABEL)]).await?.ok()?;
        for object in list["items"].as_array().context("no items")? {
            let name = object["metadata"]["name"].as_str().context("no name")?;
            ensure!(all.insert(name.to_owned(), object.clone()).is_none(), "two {name}");
        }
    }
    Ok(all)
}
