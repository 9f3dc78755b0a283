//! Number of the pods' resources, by kind: at the start, to show that they exist, and at the end.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::cast::NAMESPACE;
use crate::leftovers::Leftovers;
use crate::pods::StartedPod;
use crate::stage::Stage;

/// Kinds of resources, as [`Leftovers`] names them, with the names shown here.
const ON_THE_NODE: [(&str, &str); 6] = [
    ("container", "containers"),
    ("sandbox", "sandboxes"),
    ("process", "processes"),
    ("mount", "mounts"),
    ("cgroup", "cgroups"),
    ("directory", "directories"),
];
/// The agent has finished its cleanup by then; the kernel may need a moment to reap a process.
const PATIENCE: Duration = Duration::from_secs(5);

/// The resources at one moment.
#[derive(Debug, Clone)]
pub struct Remaining {
    on_the_node: Leftovers,
    objects: Vec<String>,
}

// === impl Remains ===

impl Remaining {
    /// Reads the runtime, the kernel, the file system and the API.
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

    /// Repeats [`Self::look`] for a moment while there is something.
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

    /// Whether nothing is left.
    pub fn is_nothing(&self) -> bool {
        self.on_the_node.is_empty() && self.objects.is_empty()
    }

    /// Number of resources of each kind.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<_> = ON_THE_NODE
            .iter()
            .map(|(kind, name)| (*name, self.on_the_node.count(kind)))
            .collect();
        counts.push(("API objects", self.objects.len()));
        counts
    }

    /// One line for each resource.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.on_the_node.remains.iter().chain(&self.objects).map(String::as_str)
    }
}
