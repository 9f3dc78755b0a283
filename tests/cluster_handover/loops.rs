//! A real kubelet that starts again and again and never works: it cannot renew its Lease, and does not answer at healthz. While it
//! lives it works on pods as any other. The agent is active between its starts.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use pod_teardown::{
    explanation::Explanation,
    handover::report::FailingKubelet,
    ops::{admin::why::request_path, client},
};
use serde_json::{Value, json};
use testbed::{dice::Dice, rest::Patch, wait::eventually};
use tokio::time::sleep;

use crate::{
    judge::Handover,
    pods::{DEAF, container},
    run::{Pods, Report, TAKEOVER_MARGIN, conclude},
    scene::Scene,
};

/// Seconds between an exit and the next start. kubeadm's unit has 10.
const PAUSES: [u64; 3] = [1, 5, 10];
/// Milliseconds from a start to the exit. In 20 s a kubelet works on pods.
const LIVES: [u64; 3] = [200, 2_000, 20_000];
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const NO_LEASES: &str = "no-node-leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-0";
const LIMIT: Duration = Duration::from_secs(60);
/// Shorter than that of the drop-in: one pod is never at a safe point.
const HANDOVER: Duration = Duration::from_secs(5);
/// A pod of the test whose grace period spans all loops.
const LONG: &str = "long";

/// Parameters of a run.
#[derive(Debug)]
pub struct Plan {
    pub loops: usize,
    pub seed: u64,
}

/// Runs all loops, and then a kubelet that works.
pub async fn run(plan: &Plan) -> Result<Report> {
    eprintln!("{plan:?}");
    let mut dice = Dice::new(plan.seed);
    let mut scene = Scene::start("2s").await?;
    let mut pods = Pods::default();
    let long = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": LONG },
        "spec": { "terminationGracePeriodSeconds": 36_000, "containers": [container("deaf", DEAF)] },
    });
    let uid = scene.create(long).await?;
    pods.run_for(&scene, &mut dice, Duration::from_secs(15)).await?;
    eventually(LIMIT, "a running pod", async || {
        let pods = scene.pods().await?;
        Ok(pods
            .get(LONG)
            .filter(|pod| pod["status"]["phase"] == "Running")
            .map(drop))
    })
    .await?;
    let healthz = break_kubelet(&scene).await?;
    scene.kill_kubelet()?;
    wait_active(&mut pods, &scene, &mut dice).await?;
    pods.delete_other(&scene, LONG, uid).await?;
    for nth in 0..plan.loops {
        let pause = Duration::from_secs(PAUSES[(nth + nth / 3) % 3]);
        let life = Duration::from_millis(LIVES[nth % 3]);
        pods.run_for(&scene, &mut dice, pause).await?;
        let before = match dice.up_to(3) {
            0 => pods.during(&scene, &mut dice, scene.request_handover(HANDOVER)).await?,
            _ => Handover::None,
        };
        eprintln!(
            "start {} of {}: {pause:?} after the last, for {life:?}, after {before:?}",
            nth + 1,
            plan.loops
        );
        scene.start_kubelet(before).await?;
        pods.run_for(&scene, &mut dice, life).await?;
        scene.kill_kubelet()?;
        // No new threshold: the gap begins at once. On a busy machine that takes its time.
        wait_active(&mut pods, &scene, &mut dice).await?;
    }
    let starts = u32::try_from(plan.loops)?;
    check_reports(&scene, starts).await?;
    repair_kubelet(&scene, healthz).await?;
    scene.start_kubelet(Handover::None).await?;
    scene.delete(LONG, Some(1)).await?;
    conclude(format!("{plan:?}"), scene, pods, plan.loops).await
}

async fn wait_active(pods: &mut Pods, scene: &Scene, dice: &mut Dice) -> Result<()> {
    let is_active = pods.during(scene, dice, scene.wait_active(TAKEOVER_MARGIN)).await?;
    if !is_active {
        bail!(
            "the agent is not active between two starts: {}",
            scene.agent.status().await?["role"]
        );
    }
    Ok(())
}

/// `status` and `why` speak of the starts.
async fn check_reports(scene: &Scene, starts: u32) -> Result<()> {
    let role = &scene.agent.status().await?["role"];
    let failing: Option<FailingKubelet> = serde_json::from_value(role["failing"].clone())?;
    ensure!(
        starts < 2 || failing.is_some_and(|failing| (2..=starts).contains(&failing.starts)),
        "{role}"
    );
    eprintln!("Role: {}", role["message"]);
    let why: Explanation = client::get(&scene.socket(), &request_path(&format!("default/{LONG}"))).await?;
    let text = why.text();
    eprintln!("{text}");
    ensure!(
        starts < 2 || text.contains("between the starts of a failing kubelet"),
        "{text}"
    );
    Ok(())
}

/// From its next start on, the kubelet answers at no healthz endpoint. From now on, no Lease of a node is renewed. Returns its
/// healthz port.
async fn break_kubelet(scene: &Scene) -> Result<Value> {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": NO_LEASES },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["coordination.k8s.io"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["leases"],
            }] },
            "validations": [{ "expression": "object.metadata.namespace != 'kube-node-lease'" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": NO_LEASES },
        "spec": { "policyName": NO_LEASES, "validationActions": ["Deny"] },
    });
    let admin = &scene.stage.admin;
    admin.create(POLICIES, &policy).await?.ok()?;
    admin.create(BINDINGS, &binding).await?.ok()?;
    let label = json!({ "metadata": { "labels": { "touched": "yes" } } });
    eventually(LIMIT, "the API server to refuse Leases", async || {
        let answer = admin.patch(LEASE, Patch::Merge, &label).await?;
        sleep(Duration::from_millis(200)).await;
        Ok((answer.code() == 422 || answer.code() == 403).then_some(()))
    })
    .await?;
    set_healthz(scene, 0.into())
}

async fn repair_kubelet(scene: &Scene, healthz: Value) -> Result<()> {
    for path in [BINDINGS, POLICIES] {
        scene
            .stage
            .admin
            .delete(&format!("{path}/{NO_LEASES}"), None)
            .await?
            .ok()?;
    }
    set_healthz(scene, healthz).map(drop)
}

/// Sets the healthz port of the kubelet's next start. The agent has read the first one.
fn set_healthz(scene: &Scene, port: Value) -> Result<Value> {
    let path = scene.stage.starter.dirs().config_file();
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut config: Value = serde_json::from_str(&text)?;
    let before = config["healthzPort"].take();
    config["healthzPort"] = port;
    fs::write(&path, format!("{config:#}\n")).with_context(|| format!("write {}", path.display()))?;
    Ok(before)
}
