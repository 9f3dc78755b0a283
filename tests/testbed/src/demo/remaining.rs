//! How much there is of the pods, kind by kind: before, to show that there was something, and at the end.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::cast::NAMESPACE;
use crate::leftovers::Leftovers;
use crate::pods::StartedPod;
use crate::stage::Stage;

/// Kinds of things, as [`Leftovers`] names them, with what they are called here.
const ON_THE_NODE: [(&str, &str); 6] = [
    ("container", "containers"),
    ("sandbox", "sandboxes"),
    ("process", "processes"),
    ("mount", "mounts"),
    ("cgroup", "cgroups"),
    ("directory", "directories"),
];
/// The agent's own clean-up is over by then; the kernel may need a moment to let a process go.
const PATIENCE: Duration = Duration::from_secs(5);

/// What there is at one moment.
#[derive(Debug, Clone)]
pub struct Remaining {
    on_the_node: Leftovers,
    objects: Vec<String>,
}

// === impl Remains ===

impl Remaining {
    /// Looks into the runtime, the kernel, the file system and the API.
    pub async fn look(stage: &Stage, pods: &[StartedPod]) -> Result<Self> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let list = stage.admin.list(&path, &[]).await?.ok()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let name = |pod: &serde_json::Value| format!("pod {}", pod["metadata"]["name"].as_str().unwrap_or("?"));
        Ok(Self {
            on_the_node: stage.leftovers(pods).await?,
            objects: items.iter().map(name).collect(),
        })
    }

    /// Looks again for a moment as long as there is something.
    pub async fn look_patiently(stage: &Stage, pods: &[StartedPod]) -> Result<Self> {
        let late = Instant::now() + PATIENCE;
        loop {
            let remains = Self::look(stage, pods).await?;
            if remains.is_nothing() || Instant::now() > late {
                return Ok(remains);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Nothing is left at all.
    pub fn is_nothing(&self) -> bool {
        self.on_the_node.is_empty() && self.objects.is_empty()
    }

    /// Each kind with how many there are.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<_> = ON_THE_NODE
            .iter()
            .map(|(kind, name)| (*name, self.on_the_node.count(kind)))
            .collect();
        counts.push(("API objects", self.objects.len()));
        counts
    }

    /// One line for each thing.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.on_the_node.remains.iter().chain(&self.objects).map(String::as_str)
    }
}
