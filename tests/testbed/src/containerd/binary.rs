//! The requested containerd, by default the one on PATH, and the CNI plugins of this machine.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;

use crate::script;

/// Directories in which distributions and Kubernetes nodes install the plugins.
const PLUGIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
/// The requested release, such as `2.4`; by default the one on PATH.
const WANTED: &str = "CONTAINERD_VERSION";
/// The plugins that a test's network needs.
const PLUGINS: [&str; 3] = ["bridge", "host-local", "loopback"];

/// A containerd installation.
#[derive(Debug, Clone)]
pub struct Binary {
    dir: PathBuf,
    /// Version such as `1.6.20`, without a distribution's suffix.
    pub version: String,
    /// First two numbers of the version.
    pub release: (u32, u32),
}

impl Binary {
    /// The one on PATH, unless `$CONTAINERD_VERSION` names another release: then `go-program.sh` finds or builds it.
    pub async fn find() -> Result<Self> {
        let wanted = std::env::var(WANTED).unwrap_or_default();
        let on_path = Self::on_path().await;
        if wanted.is_empty() || on_path.as_ref().is_ok_and(|binary| binary.is_of(&wanted)) {
            return on_path;
        }
        let built = Self::at(script::directory("go-program.sh", &["containerd", &wanted]).await?).await?;
        ensure!(
            built.is_of(&wanted),
            "{WANTED} is {wanted}, and what was built is {}",
            built.version
        );
        Ok(built)
    }

    async fn on_path() -> Result<Self> {
        let dirs = std::env::var_os("PATH").unwrap_or_default();
        let Some(dir) = std::env::split_paths(&dirs).find(|dir| dir.join("containerd").is_file()) else {
            bail!("containerd is not on PATH: install Debian's package containerd");
        };
        Self::at(dir).await
    }

    /// Runs it to read its version.
    async fn at(dir: PathBuf) -> Result<Self> {
        let said = output(Command::new(dir.join("containerd")).arg("--version")).await?;
        let (version, release) = parse_version(&said).with_context(|| format!("read the version in {said:?}"))?;
        Ok(Self { dir, version, release })
    }

    /// Whether it is of a release, given as `2.4` or `2.4.2`.
    fn is_of(&self, release: &str) -> bool {
        let rest = self.version.strip_prefix(release);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// A command from the same directory, where containerd also searches its shim first.
    pub fn command(&self, name: &str) -> std::process::Command {
        let mut command = std::process::Command::new(self.dir.join(name));
        command.env("PATH", self.path()).stdin(Stdio::null());
        command
    }

    fn path(&self) -> OsString {
        let mut path = self.dir.clone().into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path
    }
}

/// A link to the machine's runc, which can be removed without affecting others.
pub fn link_runc(link: &Path) -> Result<()> {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let Some(runc) = std::env::split_paths(&dirs)
        .map(|dir| dir.join("runc"))
        .find(|it| it.is_file())
    else {
        bail!("runc is not on PATH: install Debian's package runc");
    };
    symlink(&runc, link).with_context(|| format!("link {} to {}", link.display(), runc.display()))
}

/// Links to the machine's plugins in `dir`, which can be removed without affecting others.
pub fn link_cni_plugins(dir: &Path) -> Result<()> {
    let complete = |dir: &&Path| PLUGINS.iter().all(|plugin| dir.join(plugin).is_file());
    let Some(machines) = PLUGIN_DIRS.iter().map(Path::new).find(complete) else {
        bail!("no CNI plugins in {PLUGIN_DIRS:?}: install Debian's package containernetworking-plugins");
    };
    for plugin in PLUGINS {
        let (target, link) = (machines.join(plugin), dir.join(plugin));
        symlink(&target, &link).with_context(|| format!("link {}", link.display()))?;
    }
    Ok(())
}

/// Runs a command to its end and returns what it printed.
pub async fn output(command: &mut Command) -> Result<String> {
    let output = command.output().await.with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("read the output of {command:?}"))
}

/// `containerd SOURCE VERSION REVISION`, the version with or without a `v`.
fn parse_version(said: &str) -> Option<(String, (u32, u32))> {
    let word = said.split_whitespace().nth(2)?.trim_start_matches('v');
    let version: String = word
        .chars()
        .take_while(|char| char.is_ascii_digit() || *char == '.')
        .collect();
    let mut numbers = version.split('.').map(str::parse);
    let release = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((version, release))
}
