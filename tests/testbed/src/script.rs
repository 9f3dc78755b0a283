//! Scripts that find or build programs, and print their directory.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// Runs the script with this name; its build output goes to standard error.
pub async fn directory(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let output = Command::new(&script)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("running {}", script.display()))?;
    ensure!(
        output.status.success(),
        "{} failed: {}",
        script.display(),
        output.status
    );
    let printed = String::from_utf8(output.stdout).context("the name of the directory is not UTF-8")?;
    let directory = printed.lines().last().context("the script named no directory")?;
    Ok(PathBuf::from(directory))
}
