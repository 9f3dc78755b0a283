//! One half of the pods: a namespace with a pod of each scenario, which reach their states and are then deleted.

mod eviction;

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use testbed::{
    owner_references::TEST_FINALIZER,
    rest::{Client, Patch},
    stage::Stage,
    wait::eventually,
};
use tokio::time::{Instant, sleep};

pub use self::eviction::Power;
use crate::{
    scenario::{Deletion, Scenario, TRIGGER, VANISHES, Write, is, is_early_in_its_backoff, runs},
    scenarios::SETTINGS,
};

/// Two cores start about a hundred pods in a minute; the margin is for a machine under load.
const REACHED_LIMIT: Duration = Duration::from_secs(360);
/// Longer than all grace periods here (15 s).
const END_LIMIT: Duration = Duration::from_secs(120);
/// A state that lasts so long is stable: its status and events have arrived, and times without fractions differ.
const STABLE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(300);
const MAX_REQUESTS: usize = 16;

/// See the module's documentation.
pub struct Half<'a> {
    pub namespace: &'a str,
    pub stage: &'a Stage,
    pub scenarios: &'a [Scenario],
    /// A finalizer keeps the objects with their last statuses.
    pub keeps_objects: bool,
}

/// Result of one pod.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The object at its deletion or eviction.
    pub before: Value,
    /// The final object.
    pub after: Value,
    /// Events since then.
    pub events: Vec<Value>,
    /// Time of the deletion or eviction, in whole seconds.
    pub began: Timestamp,
}

impl Half<'_> {
    /// Creates everything.
    pub async fn create(&self) -> Result<()> {
        let create = async |path: &str, object: Value| -> Result<()> {
            self.admin().create(path, &object).await?.ok()?;
            Ok(())
        };
        let metadata = |name: &str| json!({ "name": name });
        create("/api/v1/namespaces", json!({ "metadata": metadata(self.namespace) })).await?;
        let settings = json!({ "metadata": metadata(SETTINGS), "data": { "a": "MQ==" } });
        create(&self.path("configmaps"), settings.clone()).await?;
        create(&self.path("secrets"), settings).await?;
        self.create_triggers()?;
        for scenario in self.scenarios {
            let mut spec = scenario.pod.clone();
            spec["nodeName"] = self.stage.node.as_str().into();
            if scenario.loops.is_some() {
                spec["volumes"] = json!([{ "name": TRIGGER, "hostPath": { "path": self.trigger_dir() } }]);
            }
            let mut metadata = json!({ "name": name(scenario) });
            if self.keeps_objects {
                metadata["finalizers"] = json!([TEST_FINALIZER]);
            }
            create(&self.path("pods"), json!({ "metadata": metadata, "spec": spec }))
                .await
                .with_context(|| format!("create the pod of {}", scenario.name))?;
        }
        Ok(())
    }

    /// Sends the writes for running pods.
    pub async fn write_to_running(&self) -> Result<()> {
        for scenario in self.scenarios.iter().filter(|scenario| !scenario.running.is_empty()) {
            let running = async || Ok(runs(&self.pod(scenario).await?).then_some(()));
            eventually(REACHED_LIMIT, &format!("{} to run", scenario.name), running).await?;
            self.write(scenario, &scenario.running).await?;
        }
        Ok(())
    }

    /// Waits until every pod is in its state, or its container that will loop runs.
    pub async fn wait_for_loops(&self) -> Result<()> {
        let is_reached = |scenario: &Scenario, pod: &Value| match scenario.loops {
            Some(container) => is(container, "running")(pod),
            None => (scenario.until)(pod),
        };
        self.until(is_reached, || true).await
    }

    /// Triggers the loops and waits until all pods are in a stable state at a time when `is_good`.
    pub async fn wait_reached(&self, is_good: impl Fn() -> bool) -> Result<()> {
        let dir = self.trigger_dir();
        fs::write(dir.join(TRIGGER), "").context("create the trigger")?;
        fs::remove_file(dir.join(VANISHES)).context("take a command away")?;
        let is_reached = |scenario: &Scenario, pod: &Value| {
            let pauses = |container| is_early_in_its_backoff(container, pod, Timestamp::now());
            (scenario.until)(pod) && scenario.loops.is_none_or(pauses)
        };
        self.until(is_reached, is_good).await
    }

    async fn until(&self, is_reached: impl Fn(&Scenario, &Value) -> bool, is_good: impl Fn() -> bool) -> Result<()> {
        let late = Instant::now() + REACHED_LIMIT;
        let mut since = Instant::now();
        loop {
            let missing = self.missing(&is_reached).await?;
            if !missing.is_empty() || !is_good() {
                since = Instant::now();
            }
            self.nudge(&missing).await?;
            if since.elapsed() > STABLE {
                return Ok(());
            }
            ensure!(
                Instant::now() < late,
                "in {} are not so far, or it is never a good moment: {missing:#?}",
                self.namespace
            );
            sleep(POLL).await;
        }
    }

    /// Scenarios whose pods are not in their state, with the present state.
    pub async fn not_reached(&self) -> Result<Vec<(&'static str, Value)>> {
        self.missing(&|scenario, pod| (scenario.until)(pod)).await
    }

    async fn missing(&self, is_reached: &impl Fn(&Scenario, &Value) -> bool) -> Result<Vec<(&'static str, Value)>> {
        let pods = self.pods().await?;
        let missing = self.scenarios.iter().filter_map(|scenario| {
            let pod = &pods[&name(scenario)];
            (!is_reached(scenario, pod)).then(|| (scenario.name, pod["status"].clone()))
        });
        Ok(missing.collect())
    }

    /// Evicts and deletes the pods, waits for their final states and returns them.
    pub async fn end(&self, power: &Power<'_>) -> Result<Vec<Outcome>> {
        let before = self.pods().await?;
        let earlier_events = self.events().await?;
        let began = Timestamp::from_second(Timestamp::now().as_second())?;
        let kept = match power {
            Power::Kubelet => self.prevent_removal(&before)?,
            Power::Agent(_) => Vec::new(),
        };
        self.delete_all(power).await?;

        let late = Instant::now() + END_LIMIT;
        let (mut since, mut seen) = (Instant::now(), BTreeMap::new());
        loop {
            let pods = self.pods().await?;
            let open: Vec<_> = pods.values().filter(|pod| !has_only_finalizer(pod)).collect();
            if pods != seen || !open.is_empty() {
                since = Instant::now();
            }
            if since.elapsed() > STABLE {
                break;
            }
            ensure!(Instant::now() < late, "in {} are not over: {open:#?}", self.namespace);
            seen = pods;
            sleep(POLL).await;
        }
        let removed: Vec<_> = kept.iter().filter(|log| !log.exists()).collect();
        ensure!(
            removed.is_empty(),
            "the kubelet could remove {removed:#?}, so that its results are random"
        );
        let events = self.events().await?;
        let outcome = |scenario: &Scenario| {
            let of = |pods: &BTreeMap<String, Value>| pods[&name(scenario)].clone();
            let uid = &before[&name(scenario)]["metadata"]["uid"];
            let news = events.iter().filter(|(id, event)| {
                let old = earlier_events.get(*id);
                event["involvedObject"]["uid"] == *uid && old.is_none_or(|old| old["count"] != event["count"])
            });
            Outcome {
                before: of(&before),
                after: of(&seen),
                events: news.map(|(_, event)| event.clone()).collect(),
                began,
            }
        };
        Ok(self.scenarios.iter().map(outcome).collect())
    }

    /// Evicts and deletes the pods.
    async fn delete_all(&self, power: &Power<'_>) -> Result<()> {
        let deletions = self.scenarios.iter().map(|scenario| async move {
            self.write(scenario, &scenario.write_before_deletion).await?;
            if let Some(eviction) = &scenario.eviction {
                let evicted = self.evict(scenario, eviction, power).await;
                evicted.with_context(|| format!("evict {}", scenario.name))?;
            }
            self.delete(scenario).await
        });
        let deletions = stream::iter(deletions).buffer_unordered(MAX_REQUESTS);
        deletions.try_collect::<Vec<_>>().await?;
        Ok(())
    }

    /// Evicts and deletes the pods, and waits until their objects are deleted.
    pub async fn end_without_objects(&self) -> Result<()> {
        self.delete_all(&Power::Kubelet).await?;
        let none = async || Ok(self.pods().await?.is_empty().then_some(()));
        eventually(END_LIMIT, "all objects to be deleted", none).await
    }

    /// Changes the pods: without a change a kubelet reports a crash loop only minutes later.
    async fn nudge(&self, missing: &[(&str, Value)]) -> Result<()> {
        let nudged = |scenario: &&Scenario| scenario.nudged && missing.iter().any(|(name, _)| *name == scenario.name);
        for scenario in self.scenarios.iter().filter(nudged) {
            let now = Timestamp::now().to_string();
            let annotation = json!({ "metadata": { "annotations": { "testbed.test/nudged": now } } });
            let path = self.path_of(scenario);
            self.admin().patch(&path, Patch::Merge, &annotation).await?.ok()?;
        }
        Ok(())
    }

    /// Directory of the trigger files.
    fn trigger_dir(&self) -> PathBuf {
        let dir = self.stage.containerd.workspace().dir();
        dir.join(format!("{TRIGGER}-{}", self.namespace))
    }

    fn create_triggers(&self) -> Result<()> {
        let dir = self.trigger_dir();
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let script = dir.join(VANISHES);
        let text = format!("#!/bin/sh\nwhile [ -e ${{0%/*}}/{VANISHES} ]; do sleep 1; done\nexit 4\n");
        fs::write(&script, text).with_context(|| format!("write {}", script.display()))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).context("make a script executable")
    }

    async fn delete(&self, scenario: &Scenario) -> Result<()> {
        let path = self.path_of(scenario);
        let answer = match scenario.deletion {
            Deletion::Plain => self.admin().delete(&path, None).await?,
            Deletion::Grace(seconds) => {
                let options = json!({ "gracePeriodSeconds": seconds });
                self.admin().delete(&path, Some(&options)).await?
            }
            Deletion::Eviction => {
                let metadata = json!({ "name": name(scenario), "namespace": self.namespace });
                let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata });
                self.admin().create(&format!("{path}/eviction"), &eviction).await?
            }
        };
        answer.ok().with_context(|| format!("delete {}", scenario.name))?;
        Ok(())
    }

    async fn write(&self, scenario: &Scenario, writes: &[Write]) -> Result<()> {
        for write in writes {
            let path = format!("{}{}", self.path_of(scenario), write.subresource);
            let written = self.admin().patch(&path, write.kind, &write.patch).await?.ok();
            written.with_context(|| format!("write to {}", scenario.name))?;
        }
        Ok(())
    }

    async fn pod(&self, scenario: &Scenario) -> Result<Value> {
        Ok(self.admin().get(&self.path_of(scenario)).await?.ok()?)
    }

    async fn pods(&self) -> Result<BTreeMap<String, Value>> {
        self.list("pods", "name").await
    }

    /// By UID.
    async fn events(&self) -> Result<BTreeMap<String, Value>> {
        self.list("events", "uid").await
    }

    async fn list(&self, resource: &str, by: &str) -> Result<BTreeMap<String, Value>> {
        let list = self.admin().get(&self.path(resource)).await?.ok()?;
        let items = list["items"].as_array().into_iter().flatten();
        let key = |item: &Value| item["metadata"][by].as_str().unwrap_or_default().to_owned();
        Ok(items.map(|item| (key(item), item.clone())).collect())
    }

    fn admin(&self) -> &Client {
        &self.stage.admin
    }

    fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    fn path_of(&self, scenario: &Scenario) -> String {
        self.path(&format!("pods/{}", name(scenario)))
    }
}

/// Only the finalizer keeps it.
fn has_only_finalizer(pod: &Value) -> bool {
    pod["metadata"]["deletionGracePeriodSeconds"] == 0 && has_ended(pod)
}

fn has_ended(pod: &Value) -> bool {
    let phase = &pod["status"]["phase"];
    ["Succeeded", "Failed"].iter().any(|end| phase == end)
}

fn name(scenario: &Scenario) -> String {
    scenario.name.replace('_', "-")
}
