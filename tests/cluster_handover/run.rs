//! One run: deaths and starts of kubelets, concurrent creations and deletions of pods, and the report.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    time::Duration,
};

use anyhow::{Result, bail};
use serde_json::Value;
use testbed::{dice::Dice, leftovers::Leftovers, wait::eventually};
use tokio::time::{Instant, sleep};

use crate::{
    judge::{Act, HOOK, Handover, Life, MOUNT, Side, UNMOUNT, Verdict, WRITE, acts_before_deletion, judge},
    pods::pod,
    scene::Scene,
};

const RUNNING_PODS: usize = 18;
/// Limit for the last deletions and the removal of leftovers by a kubelet, which sweeps once a minute.
const CLEANUP_LIMIT: Duration = Duration::from_secs(150);

/// Limit within which the recorder has heard all unmounts, on a busy machine.
const RECORDER_LIMIT: Duration = Duration::from_secs(10);

/// Margin of a takeover beyond its threshold. On a busy machine, late probes restart the threshold.
pub const TAKEOVER_MARGIN: Duration = Duration::from_secs(600);

/// Parameters of a run.
#[derive(Debug)]
pub struct Plan {
    pub deaths: usize,
    pub take_over_after: String,
    pub seed: u64,
}

/// Result of a run; pairs are of the kubelet and of the agent.
#[derive(Debug)]
#[allow(dead_code, reason = "all of it is printed")]
pub struct Report {
    plan: String,
    took: f64,
    lives: Vec<Life>,
    taken_over: usize,
    agent_deaths: usize,
    pods: usize,
    deleted: usize,
    by: [usize; 2],
    hooks: [usize; 2],
    mounts: [usize; 2],
    unmounts: [usize; 2],
    writes: [usize; 2],
    verdict: Verdict,
    /// Acts of the agent on pods that were not deleted.
    acts_before_deletion: Vec<String>,
    never_started: usize,
    lost: Vec<String>,
    stuck: Vec<String>,
    left: Vec<String>,
    /// Containers that the runtime cannot remove.
    unremovable: usize,
    unknown: usize,
}

/// All pods of the run.
#[derive(Debug, Default)]
pub struct Pods {
    uids: BTreeMap<String, String>,
    /// Deletion times by name.
    deleted: BTreeMap<String, f64>,
    /// UIDs of pods that terminated before, because their kubelet died during their start.
    never_started: BTreeSet<String>,
    /// Other pods that did not run at their deletion.
    lost: Vec<String>,
}

/// See the module's documentation.
pub async fn run(plan: &Plan) -> Result<Report> {
    eprintln!("{plan:?}");
    let mut dice = Dice::new(plan.seed);
    let mut scene = Scene::start(&plan.take_over_after).await?;
    let mut pods = Pods::default();
    let mut taken_over = 0;
    let threshold = humantime::parse_duration(&plan.take_over_after)?;
    for nth in 0..plan.deaths {
        let up = Duration::from_secs(3) + dice.millis(9_000);
        pods.run_for(&scene, &mut dice, up).await?;
        scene.end_kubelet(&mut dice).await?;
        // One in four is a restart, too short for a takeover.
        let away = if dice.one_in(4) {
            pods.run_for(&scene, &mut dice, threshold.min(Duration::from_secs(30)) / 2)
                .await?;
            "a restart"
        } else {
            let patience = threshold + TAKEOVER_MARGIN;
            let ours = pods.during(&scene, &mut dice, scene.wait_active(patience)).await?;
            if !ours {
                bail!("the agent does not take over: {}", scene.agent.status().await?["role"]);
            }
            taken_over += 1;
            let some = dice.millis(6_000);
            pods.run_for(&scene, &mut dice, some).await?;
            // Killed during its work, and then between its acts.
            if dice.one_in(3) {
                scene.restart_agent().await?;
                let ours = pods.during(&scene, &mut dice, scene.wait_active(patience)).await?;
                if !ours {
                    bail!("an agent that was killed does not go on");
                }
                let some = dice.millis(3_000);
                pods.run_for(&scene, &mut dice, some).await?;
            }
            "taken over"
        };
        let before = match dice.up_to(4) {
            0 => Handover::None,
            1 => scene.request_handover(Duration::from_millis(200)).await?,
            _ => {
                pods.during(&scene, &mut dice, scene.request_handover(Duration::from_secs(60)))
                    .await?
            }
        };
        eprintln!("death {} of {}: {away}, then {before:?}", nth + 1, plan.deaths);
        scene.start_kubelet(before).await?;
    }
    conclude(format!("{plan:?}"), scene, pods, taken_over).await
}

/// Deletes all pods beside a working kubelet, and compares the records.
pub async fn conclude(plan: String, scene: Scene, mut pods: Pods, taken_over: usize) -> Result<Report> {
    let deleted = pods.deleted.len();
    let stuck = pods.delete_all(&scene).await?;
    // A kubelet may unmount volumes of pods later than they are deleted.
    let left = pods.left(&scene).await?;
    let all = async || {
        let acts = scene.acts(&pods.uids)?;
        let count = |verb: &str| acts.iter().filter(|act| act.what.starts_with(verb)).count();
        Ok((count(MOUNT) == count(UNMOUNT)).then_some(acts))
    };
    // Missing ones are reported below.
    let acts = match eventually(RECORDER_LIMIT, "all unmounts", all).await {
        Ok(acts) => acts,
        Err(_) => scene.acts(&pods.uids)?,
    };
    let names = pods
        .uids
        .iter()
        .map(|(name, uid)| (uid.clone(), format!("default/{name}")));
    let names = names.collect();
    let verdict = judge(&scene.lives, &acts, &names);
    let acts_before_deletion = acts_before_deletion(&acts, &pods.asked(), &pods.never_started, &names);
    let wrong = [
        &verdict.overlaps,
        &verdict.run_again,
        &acts_before_deletion,
        &left.remains,
    ];
    let wrong: Vec<_> = wrong.into_iter().flatten().cloned().collect();
    eprint!("{}", scene.logs_about(&wrong));
    let is_wrong = |act: &&Act| wrong.iter().any(|line| line.contains(&act.uid));
    acts.iter().filter(is_wrong).for_each(|act| eprintln!("{act:?}"));
    if !wrong.is_empty() {
        eprintln!("{:?}\n{:?}", scene.lives, scene.agent_deaths);
    }
    let (unremovable, left): (Vec<_>, Vec<_>) = left.remains.into_iter().partition(|line| is_unremovable(line, &acts));
    let of = |which: fn(&Act) -> bool| {
        [Side::Kubelet, Side::Agent].map(|side| acts.iter().filter(|act| act.side == side && which(act)).count())
    };
    Ok(Report {
        plan,
        took: scene.now(),
        lives: scene.lives.clone(),
        taken_over,
        agent_deaths: scene.agent_deaths.len(),
        pods: pods.uids.len(),
        deleted,
        by: of(|_| true),
        hooks: of(|act| act.what == HOOK),
        mounts: of(|act| act.what.starts_with(MOUNT)),
        unmounts: of(|act| act.what.starts_with(UNMOUNT)),
        writes: of(|act| act.what.contains(WRITE)),
        verdict,
        acts_before_deletion,
        never_started: pods.never_started.len(),
        lost: pods.lost,
        stuck,
        left,
        unremovable: unremovable.iter().filter(|line| line.starts_with("container")).count(),
        unknown: scene.unknown(),
    })
}

impl Pods {
    /// Creates and deletes pods for so long.
    pub async fn run_for(&mut self, scene: &Scene, dice: &mut Dice, time: Duration) -> Result<()> {
        let wait = async {
            sleep(time).await;
            Ok(())
        };
        self.during(scene, dice, wait).await
    }

    /// Creates and deletes pods during `work`; a change in progress is finished.
    pub async fn during<T>(
        &mut self,
        scene: &Scene,
        dice: &mut Dice,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut work = pin!(work);
        loop {
            let pause = dice.millis(700);
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep(pause) => self.change(scene, dice).await?,
            }
        }
    }

    /// Creates or deletes a pod.
    async fn change(&mut self, scene: &Scene, dice: &mut Dice) -> Result<()> {
        let living: Vec<_> = self
            .uids
            .keys()
            .filter(|name| !self.deleted.contains_key(*name))
            .cloned()
            .collect();
        if living.len() < RUNNING_PODS && !dice.one_in(3) || living.is_empty() {
            let name = format!("pod-{}", self.uids.len());
            let uid = scene.create(pod(&name, dice)).await?;
            self.uids.insert(name, uid);
            return Ok(());
        }
        let name = &living[dice.up_to(living.len())];
        let grace = match dice.up_to(8) {
            0 => Some(0),
            1 => Some(1),
            _ => None,
        };
        self.delete(scene, name, grace).await
    }

    /// Deletes a running pod that the run has not created.
    pub async fn delete_other(&mut self, scene: &Scene, name: &str, uid: String) -> Result<()> {
        self.uids.insert(name.to_owned(), uid);
        self.delete(scene, name, None).await
    }

    /// Deletes a pod that should be running.
    async fn delete(&mut self, scene: &Scene, name: &str, grace: Option<i64>) -> Result<()> {
        self.deleted.insert(name.to_owned(), scene.now());
        match scene.delete(name, grace).await? {
            None => self
                .lost
                .push(format!("{name}: its object was gone before it was deleted")),
            Some(pod) if never_started(&pod) => {
                self.never_started.insert(self.uids[name].clone());
            }
            Some(pod) if has_ended(&pod) => self.lost.push(format!("{name} had ended: {}", pod["status"])),
            Some(_) => {}
        }
        Ok(())
    }

    /// Deletion times by UID.
    fn asked(&self) -> BTreeMap<String, f64> {
        let asked = self.deleted.iter();
        asked.map(|(name, at)| (self.uids[name].clone(), *at)).collect()
    }

    /// With a running kubelet: reports deleted pods that stay and other pods that do not run, then deletes all.
    async fn delete_all(&mut self, scene: &Scene) -> Result<Vec<String>> {
        let late = Instant::now() + CLEANUP_LIMIT;
        let names: Vec<_> = self.uids.keys().cloned().collect();
        let (deleted, living): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| self.deleted.contains_key(name));
        let mut stuck = loop {
            let pods = scene.pods().await?;
            let stuck: Vec<_> = deleted
                .iter()
                .filter(|name| pods.contains_key(*name))
                .cloned()
                .collect();
            let works = |name| pods.get(name).is_some_and(|pod| runs(pod) || never_started(pod));
            let idle: Vec<_> = living.iter().filter(|name| !works(*name)).collect();
            if stuck.is_empty() && idle.is_empty() {
                break stuck;
            }
            if Instant::now() > late {
                let text = idle
                    .into_iter()
                    .map(|name| format!("{name} does not run: {:?}", pods.get(name)));
                self.lost.extend(text);
                break stuck;
            }
            sleep(Duration::from_millis(500)).await;
        };
        for name in &living {
            self.delete(scene, name, None).await?;
        }
        for name in &stuck {
            scene.delete(name, None).await?;
        }
        let none = async || Ok(scene.pods().await?.is_empty().then_some(()));
        // Those that stay are reported.
        drop(eventually(CLEANUP_LIMIT, "the end of all pods", none).await);
        stuck.extend(scene.pods().await?.into_keys());
        Ok(stuck)
    }

    /// Leftovers on the node.
    async fn left(&self, scene: &Scene) -> Result<Leftovers> {
        let gone = self.uids.values().cloned().collect();
        let clean = async || Ok(scene.left_of(&gone).await?.is_empty().then_some(()));
        drop(eventually(CLEANUP_LIMIT, "a clean node", clean).await);
        scene.left_of(&gone).await
    }
}

/// Whether this is a container, or its sandbox, whose start was interrupted by the kubelet's death and that containerd cannot
/// remove (containerd issue 11037).
fn is_unremovable(left: &str, acts: &[Act]) -> bool {
    let has_ended = left.contains("CONTAINER_EXITED") || left.contains("SANDBOX_NOTREADY");
    let of_pod = |what: &str| {
        acts.iter()
            .any(|act| !act.done && act.what == what && left.contains(&act.uid))
    };
    has_ended && of_pod("StartContainer") && of_pod("RemoveContainer")
}

/// Its kubelet died during a container's start, and the runtime canceled the start.
fn never_started(pod: &Value) -> bool {
    let containers = pod["status"]["containerStatuses"].as_array();
    let mut reasons = containers
        .into_iter()
        .flatten()
        .map(|it| &it["state"]["terminated"]["reason"]);
    has_ended(pod) && reasons.any(|reason| reason == "StartError")
}

fn has_ended(pod: &Value) -> bool {
    ["Failed", "Succeeded"]
        .iter()
        .any(|phase| pod["status"]["phase"] == *phase)
}

fn runs(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

impl Report {
    /// Whether the run has no violation.
    pub fn is_good(&self) -> Result<()> {
        let bad = [
            &self.verdict.overlaps,
            &self.verdict.run_again,
            &self.acts_before_deletion,
            &self.lost,
            &self.stuck,
            &self.left,
        ];
        let bad: Vec<&str> = bad.into_iter().flatten().map(String::as_str).collect();
        if !bad.is_empty() {
            bail!("{}", bad.join("\n"));
        }
        if self.unknown > 0 {
            bail!("of {} calls it is not known which pod they were for", self.unknown);
        }
        // Without records no overlap could be detected, so there have to be some.
        let ([by_kubelet, by_agent], mounts) = (self.unmounts, self.mounts.iter().sum::<usize>());
        if mounts != by_kubelet + by_agent || by_kubelet == 0 || self.taken_over > 0 && by_agent == 0 {
            bail!("{mounts} mounts were seen, and {by_kubelet} unmounts by the kubelet and {by_agent} by the agent");
        }
        let [by_kubelet, by_agent] = self.writes;
        if by_kubelet == 0 || self.taken_over > 0 && by_agent == 0 {
            bail!("{by_kubelet} writes by the kubelet were seen and {by_agent} by the agent");
        }
        Ok(())
    }
}
