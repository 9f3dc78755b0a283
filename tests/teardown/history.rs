//! All states of one pod's object, from a watch.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testbed::{pods::StartedPod, rest::EventType};
use tokio::{task::JoinHandle, time::timeout};

use super::scene::{PATIENCE, Scene};

/// A history in progress.
pub struct History {
    recorder: JoinHandle<Result<Vec<Value>>>,
}

/// The states of an object until its deletion.
#[derive(Debug)]
pub struct States(Vec<Value>);

impl History {
    /// Begins with the current object.
    pub async fn follow(scene: &Scene, pod: &StartedPod) -> Result<Self> {
        let first = scene.object(&pod.identity.name).await?;
        let selector = format!("metadata.name={}", pod.identity.name);
        let version = first["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let options = [("fieldSelector", selector.as_str()), ("resourceVersion", version)];
        let path = format!("/api/v1/namespaces/{}/pods", scene.namespace);
        let mut watch = scene.stage.admin.watch(&path, &options).await?;
        let uid = pod.uid().to_owned();
        let recorder = tokio::spawn(async move {
            let mut states = vec![first];
            while let Some(event) = watch.next().await? {
                if event.object["metadata"]["uid"] != uid.as_str() {
                    continue;
                }
                states.push(event.object);
                if event.kind == EventType::Deleted {
                    return Ok(states);
                }
            }
            bail!("the watch ended before the pod did")
        });
        Ok(Self { recorder })
    }

    /// Waits for the deletion.
    pub async fn end(self) -> Result<States> {
        let states = timeout(PATIENCE, self.recorder).await.context("no end was seen")???;
        let history = States(states);
        history.never_goes_back()?;
        Ok(history)
    }
}

impl States {
    pub fn last(&self) -> &Value {
        self.0.last().unwrap_or(&Value::Null)
    }

    /// The last phase.
    pub fn phase(&self) -> &str {
        self.last()["status"]["phase"].as_str().unwrap_or_default()
    }

    /// Exit code and reason of a container in the last state. Its times must be set and in order.
    pub fn exit(&self, container: &str) -> Result<(i64, &str)> {
        let last = self.last();
        let status = statuses(last).find(|status| status["name"] == container);
        let status = status.with_context(|| format!("no status of {container} in {last}"))?;
        let ended = &status["state"]["terminated"];
        let code = ended["exitCode"]
            .as_i64()
            .with_context(|| format!("{container} has not ended: {status}"))?;
        let [started, finished] = ["startedAt", "finishedAt"].map(|key| ended[key].as_str().unwrap_or_default());
        ensure!(
            !started.is_empty() && started <= finished,
            "times of {container}: {ended}"
        );
        ensure!(
            ended["containerID"] == status["containerID"],
            "id of {container}: {status}"
        );
        ensure!(status["ready"] == false, "{container} has ended and is ready: {status}");
        Ok((code, ended["reason"].as_str().unwrap_or_default()))
    }

    /// Checks that no state reverts the one before.
    fn never_goes_back(&self) -> Result<()> {
        for pair in self.0.windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            let context = || format!("from\n{}\nto\n{}", before["status"], after["status"]);
            phase_follows(before, after).with_context(context)?;
            for status in statuses(before) {
                container_follows(status, after).with_context(context)?;
            }
            for condition in list(before, "conditions") {
                condition_follows(condition, after).with_context(context)?;
            }
        }
        Ok(())
    }
}

fn phase_follows(before: &Value, after: &Value) -> Result<()> {
    let rank = |object: &Value| match object["status"]["phase"].as_str() {
        Some("Succeeded" | "Failed") => 2,
        Some("Running") => 1,
        _ => 0,
    };
    let same = before["status"]["phase"] == after["status"]["phase"];
    ensure!(
        rank(before) < rank(after) || same,
        "the phase went from {} to {}",
        before["status"]["phase"],
        after["status"]["phase"]
    );
    Ok(())
}

fn container_follows(before: &Value, after: &Value) -> Result<()> {
    let ended = &before["state"]["terminated"];
    if ended.is_null() {
        return Ok(());
    }
    let now = statuses(after).find(|status| status["name"] == before["name"]);
    let now = now.with_context(|| format!("the status of {} went away", before["name"]))?;
    ensure!(
        now["state"]["terminated"] == *ended,
        "the last state of {} was replaced: {ended}, then {}",
        before["name"],
        now["state"]
    );
    Ok(())
}

fn condition_follows(before: &Value, after: &Value) -> Result<()> {
    let now = list(after, "conditions").find(|condition| condition["type"] == before["type"]);
    let now = now.with_context(|| format!("condition {} went away", before["type"]))?;
    let time = |condition: &Value| condition["lastTransitionTime"].as_str().unwrap_or_default().to_owned();
    ensure!(
        time(before) <= time(now),
        "condition {} went back in time",
        before["type"]
    );
    Ok(())
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .flat_map(|key| list(pod, key))
}

fn list<'a>(pod: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    pod["status"][key].as_array().into_iter().flatten()
}
