//! crictl, with which people look at a runtime from outside: another client than the agent's and the testbed's own.

use std::path::PathBuf;

use anyhow::Result;
use tokio::process::Command;

use crate::containerd::{Containerd, binary::output};
use crate::script;

/// crictl for one runtime.
#[derive(Debug)]
pub struct Crictl {
    program: PathBuf,
    endpoint: String,
}

impl Crictl {
    /// crictl for this containerd. `go-program.sh` builds the program once.
    pub async fn of(containerd: &Containerd) -> Result<Self> {
        let directory = script::directory("go-program.sh", &["crictl"]).await?;
        Ok(Self {
            program: directory.join("crictl"),
            endpoint: containerd.endpoint(),
        })
    }

    /// Runs it, and returns what it prints.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["--runtime-endpoint", &self.endpoint]).args(arguments);
        output(&mut command).await
    }

    /// What it lists of the pod with that UID, by ids in order: `list` is `pods`, or `ps` with its flags.
    pub async fn ids_of(&self, uid: &str, list: &[&str]) -> Result<Vec<String>> {
        let label = format!("io.kubernetes.pod.uid={uid}");
        let listed = self.run(&[list, &["--quiet", "--label", &label]].concat()).await?;
        let mut ids: Vec<_> = listed.lines().map(str::to_owned).collect();
        ids.sort();
        Ok(ids)
    }
}
