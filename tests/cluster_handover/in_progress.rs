//! Work in progress of a killed kubelet, and pods deleted before the takeover.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::{command::Killed, containerd::POLITE, wait::eventually};
use tokio::time::sleep;

use crate::{
    judge::{Act, HOOK, Handover, Side, UNMOUNT},
    pods::{DEAF, container},
    scene::{AGENT, Scene},
};

const STOP: &str = "StopContainer";
const START: Duration = Duration::from_secs(120);
const PROGRESS_LIMIT: Duration = Duration::from_secs(60);
/// Longer than all grace periods here (40 s).
const DELETE_LIMIT: Duration = Duration::from_secs(90);
/// Writes until it exits, to a volume that another pod might use.
const WRITES: &str = "trap '' TERM; while :; do date >> /data/log; sleep 0.1; done";

/// A pod of the test.
struct Pod {
    name: &'static str,
    uid: String,
}

impl Pod {
    async fn create(scene: &Scene, name: &'static str, spec: Value) -> Result<Self> {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec });
        let uid = scene.create(pod).await?;
        Ok(Self { name, uid })
    }

    fn acts(&self, scene: &Scene, side: Side, what: &str) -> Result<Vec<Act>> {
        let names = [(self.name.to_owned(), self.uid.clone())].into();
        let acts = scene.acts(&names)?.into_iter();
        let of_pod = acts.filter(|act| act.uid == self.uid && act.side == side && act.what.starts_with(what));
        Ok(of_pod.collect())
    }

    /// Waits until the kubelet's acts on it satisfy `reached`.
    async fn until(&self, scene: &Scene, what: &str, reached: impl Fn(&[Act]) -> bool) -> Result<()> {
        let text = format!("the kubelet's {what} of {}", self.name);
        let look = async || Ok(reached(&self.acts(scene, Side::Kubelet, what)?).then_some(()));
        eventually(PROGRESS_LIMIT, &text, look).await
    }

    async fn gone(&self, scene: &Scene) -> Result<()> {
        let look = async || Ok((!scene.pods().await?.contains_key(self.name)).then_some(()));
        let gone = eventually(DELETE_LIMIT, &format!("the end of {}", self.name), look).await;
        gone.with_context(|| format!("the agent's log ends:\n{}", scene.agent.log_tail()))
    }

    fn volume(&self, scene: &Scene, name: &str) -> PathBuf {
        let volumes = scene.stage.starter.dirs().pods().join(&self.uid).join("volumes");
        volumes.join("kubernetes.io~empty-dir").join(name)
    }
}

pub fn spec(grace: u64, containers: &[Value]) -> Value {
    json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace,
        "automountServiceAccountToken": false,
        "containers": containers,
    })
}

pub fn memory(names: &[&str]) -> (Value, Value) {
    let volumes = names
        .iter()
        .map(|name| json!({ "name": name, "emptyDir": { "medium": "Memory" } }));
    let mounts = names
        .iter()
        .map(|name| json!({ "name": name, "mountPath": format!("/{name}") }));
    (volumes.collect(), mounts.collect())
}

fn lines(log: &Path) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().count()
}

/// Runs the test.
pub async fn run() -> Result<()> {
    let mut scene = Scene::start("2s").await?;
    let data = scene.stage.containerd.workspace().dir().join("data");
    fs::create_dir(&data)?;

    // The hook has to run when the kubelet is killed, which is after the stops of another pod.
    let mut in_hook = spec(40, &[container("main", POLITE)]);
    in_hook["containers"][0]["lifecycle"] = json!({ "preStop": { "exec": { "command": ["sleep", "15"] } } });
    let in_hook = Pod::create(&scene, "in-hook", in_hook).await?;

    let half_stopped = spec(40, &[container("main", POLITE), container("deaf", DEAF)]);
    let half_stopped = Pod::create(&scene, "half-stopped", half_stopped).await?;

    let mut half_unmounted = spec(5, &[container("main", POLITE)]);
    (
        half_unmounted["volumes"],
        half_unmounted["containers"][0]["volumeMounts"],
    ) = memory(&["busy", "free"]);
    let half_unmounted = Pod::create(&scene, "half-unmounted", half_unmounted).await?;

    let mut forced = spec(20, &[container("main", WRITES)]);
    forced["volumes"] = json!([{ "name": "data", "hostPath": { "path": data } }]);
    forced["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let forced = Pod::create(&scene, "forced", forced).await?;

    let unheard = Pod::create(&scene, "unheard", spec(20, &[container("main", POLITE)])).await?;
    let living = Pod::create(&scene, "living", spec(20, &[container("main", POLITE)])).await?;
    let all = [&in_hook, &half_stopped, &half_unmounted, &forced, &unheard, &living];
    for pod in all {
        let runs = async || Ok((scene.pods().await?[pod.name]["status"]["phase"] == "Running").then_some(()));
        eventually(START, &format!("{} to run", pod.name), runs).await?;
    }

    // The kubelet is killed during these three.
    let holder = Killed::sleep_in(&half_unmounted.volume(&scene, "busy"))?;
    scene.delete(half_unmounted.name, None).await?;
    half_unmounted
        .until(&scene, UNMOUNT, |acts| {
            acts.iter().any(|act| act.what.contains("/free by "))
        })
        .await?;
    scene.delete(half_stopped.name, None).await?;
    scene.delete(in_hook.name, None).await?;
    half_stopped
        .until(&scene, STOP, |acts| acts.len() == 2 && acts.iter().any(|act| act.done))
        .await?;
    in_hook.until(&scene, HOOK, |acts| !acts.is_empty()).await?;
    scene.kill_kubelet()?;
    let died = scene.now();

    // No kubelet gets these deletions.
    scene.delete(unheard.name, None).await?;
    scene.delete(forced.name, Some(0)).await?;
    ensure!(
        !scene.pods().await?.contains_key(forced.name),
        "what was deleted by force is gone"
    );
    ensure!(scene.wait_active(PROGRESS_LIMIT).await?, "the agent does not take over");

    for pod in [&in_hook, &half_stopped, &unheard] {
        pod.gone(&scene).await?;
    }
    let agents = |pod: &Pod, what: &str| pod.acts(&scene, Side::Agent, what);
    ensure!(
        agents(&in_hook, HOOK)?.len() == 1,
        "the hook was cut short with its kubelet, and is run again"
    );
    let stops = agents(&half_stopped, STOP)?;
    ensure!(
        stops.len() == 1,
        "only the container that still runs is stopped: {stops:?}"
    );

    // The writing pod is stopped before the others, and stays stopped.
    let forced_stop = agents(&forced, STOP)?;
    let ended = forced_stop
        .iter()
        .find(|act| act.done)
        .context("the end of the one who writes")?
        .end;
    for pod in [&in_hook, &half_stopped, &unheard] {
        let early: Vec<_> = agents(pod, STOP)?;
        let early = early.iter().filter(|act| act.begin < ended);
        ensure!(
            early.count() == 0,
            "{} was stopped before what was deleted by force",
            pod.name
        );
    }
    let written = lines(&data.join("log"));
    sleep(Duration::from_secs(1)).await;
    ensure!(
        written > 0 && lines(&data.join("log")) == written,
        "a process still writes"
    );

    // The last one waits for the mount, names its holder, and is deleted after the holder exits.
    let pid = holder.pid();
    let named = async || {
        let why = Command::new(AGENT)
            .args(["why", "default/half-unmounted", "--socket"])
            .arg(scene.socket())
            .output()?;
        let why = String::from_utf8_lossy(&why.stdout).into_owned();
        let is_named = why.contains("busy") && why.contains(&pid.to_string()) && why.contains("sleep");
        Ok(is_named.then_some(()))
    };
    // A search for holders has a time limit, within which a busy machine may not read all processes.
    eventually(PROGRESS_LIMIT, "why names the holder", named).await?;
    ensure!(
        scene.pods().await?.contains_key(half_unmounted.name),
        "a volume is mounted"
    );
    drop(holder);
    half_unmounted.gone(&scene).await?;
    // The recorder may be late.
    let unmounts = async || Ok(Some(agents(&half_unmounted, UNMOUNT)?).filter(|acts| !acts.is_empty()));
    let by_agent = eventually(PROGRESS_LIMIT, "an unmount by the agent", unmounts).await?;
    ensure!(
        by_agent.len() == 1 && by_agent[0].what.contains("/busy by "),
        "what the kubelet has left mounted is unmounted: {by_agent:?}"
    );

    // No other pod was touched.
    ensure!(
        agents(&living, "")?.is_empty(),
        "a running pod is not touched: {:?}",
        agents(&living, "")?
    );
    scene.start_kubelet(Handover::None).await?;
    let gone = all[..5].iter().map(|pod| pod.uid.clone()).collect();
    let clean = async || Ok(scene.left_of(&gone).await?.is_empty().then_some(()));
    eventually(PROGRESS_LIMIT, "a clean node", clean).await?;
    ensure!(
        scene.pods().await?["living"]["status"]["phase"] == "Running",
        "it has lived on"
    );
    eprintln!(
        "all of it took {:.1} s from the death of the kubelet",
        scene.now() - died
    );
    Ok(())
}
