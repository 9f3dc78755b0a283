//! Checks during and after every run, from outside of the agent.

use std::{fs, ops::Range, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use testbed::{cgroups, mounts, pods::StartedPod, stage::Stage};

use super::{fault::Fault, history::States, shared_stage::running};

/// Maximum time of a stop beyond its grace period: two seconds of its own, and what the runtime and the machine need.
pub const SLACK: Duration = Duration::from_secs(2 + 13);
/// The API has whole seconds.
const API_PRECISION: Duration = Duration::from_secs(1);
/// Additional time after a runtime restart, until clients connect again.
const RUNTIME_SLACK: Duration = Duration::from_secs(5);
/// Additional time if an exec was canceled before it started: containerd's shim waits for readers and answers nothing
/// else about the pod meanwhile.
const SHIM_SLACK: Duration = Duration::from_secs(30);

/// A run took too long, as on a busy machine. It is repeated.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TooLate(String);

/// Invariant 1, just before the final DELETE, while the agent is stopped.
pub async fn may_delete(stage: &Stage, pod: &StartedPod) -> Result<()> {
    let mut left = running(&stage.containerd, pod).await?;
    let mounted = mounts::below(&pod.dir)?;
    left.extend(mounted.iter().map(|point| format!("mount {}", point.display())));
    let name = format!("pod{}", pod.uid());
    let groups = cgroups::find(|found| found == name.as_str())?;
    left.extend(groups.iter().map(|group| format!("cgroup {}", group.display())));
    ensure!(
        left.is_empty(),
        "invariant 1: the object is to be deleted with {left:?}"
    );
    Ok(())
}

/// Volumes and devices are released only after all containers have exited.
pub async fn may_release(stage: &Stage, pod: &StartedPod) -> Result<()> {
    let mut left = running(&stage.containerd, pod).await?;
    left.retain(|running| running.starts_with("container "));
    ensure!(left.is_empty(), "a volume or device is to be taken from {left:?}");
    Ok(())
}

/// Invariant 5, and that the hook was not skipped. Until the grace period has expired, no agent may skip it. A runtime that restarts
/// just then may refuse its call: `has_failed`.
pub fn hook_ran(
    said: &[String],
    reported: &States,
    begun: &Range<Timestamp>,
    grace: Duration,
    struck: Option<Fault>,
    has_failed: bool,
) -> Result<()> {
    let times = |line: &str| said.iter().filter(|said| *said == line).count();
    let (started, ended) = (times("hook"), times("hooked"));
    let (least, most) = match struck {
        None | Some(Fault::ServerDown) => (1, 1),
        Some(fault) if fault.deletes_object() => (0, 1),
        Some(Fault::RuntimeRestarts) if has_failed => (0, 2),
        Some(_) => (1, 2),
    };
    let text = format!("the hook began {started} times and ended {ended} times: {said:?}");
    if started < least && since(begun.start, finished_at(reported, "main")?) + API_PRECISION > grace {
        return Err(TooLate(text).into());
    }
    ensure!((least..=most).contains(&started) && ended <= started, "{text}");
    Ok(())
}

/// Exit codes, and invariant 4: neither longer nor shorter than the grace period. The termination started within `begun`:
/// after a repeated request it is unknown which one started it.
pub fn exited_correctly(
    reported: &States,
    begun: &Range<Timestamp>,
    grace: Duration,
    struck: Option<Fault>,
    shim_held: bool,
) -> Result<()> {
    let last = reported.last();
    for (name, end) in [
        ("main", (0, "Completed")),
        ("stubborn", (137, "Error")),
        ("sidecar", (0, "Completed")),
    ] {
        let found = reported.exit(name)?;
        ensure!(found == end, "{name} ended with {found:?}, not {end:?}: {last}");
    }
    ensure!(last["status"]["phase"] == "Failed", "{last}");
    let ended = finished_at(reported, "stubborn")?;
    let (longest, shortest) = (since(begun.start, ended) + API_PRECISION, since(begun.end, ended));
    let slack = match struck {
        Some(Fault::RuntimeRestarts) => SLACK + RUNTIME_SLACK,
        // The killed caller's exec blocks the shim.
        Some(_) if shim_held => SLACK + SHIM_SLACK,
        _ => SLACK,
    };
    let text = format!("invariant 4: a grace of {grace:?} took {shortest:?} to {longest:?}");
    ensure!(longest > grace, "{text}");
    ensure!(shortest < grace + slack, TooLate(text));
    Ok(())
}

/// When a container exited, in whole seconds.
fn finished_at(reported: &States, container: &str) -> Result<Timestamp> {
    let last = reported.last();
    let statuses = last["status"]["containerStatuses"].as_array();
    let status = statuses.and_then(|all| all.iter().find(|status| status["name"] == container));
    let status = status.with_context(|| format!("no status of {container} in {last}"))?;
    let finished = status["state"]["terminated"]["finishedAt"].as_str();
    finished
        .unwrap_or_default()
        .parse::<Timestamp>()
        .context("read finishedAt")
}

/// The time between both; zero if the second is earlier.
fn since(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// Whether containerd reports an exec in this pod that was canceled before it started.
pub fn shim_was_held(stage: &Stage, pod: &StartedPod) -> Result<bool> {
    let log = &stage.containerd.paths().log;
    let said = fs::read(log).with_context(|| format!("read {}", log.display()))?;
    let said = String::from_utf8_lossy(&said);
    let mut canceled = said
        .lines()
        .filter(|line| line.contains("failed to start exec") && line.contains("context canceled"));
    Ok(canceled.any(|line| pod.containers.values().any(|id| line.contains(id.as_str()))))
}
