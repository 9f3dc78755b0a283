//! Objects that kube-controller-manager's controllers create. Pods are never scheduled, so their deletion is immediate.
//! Most claims are also Kubernetes' own end-to-end tests.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::scene::{LIMIT, ObjectSpec, Scene, eventually, owned, owners_of, to};

const DEPLOYMENTS: &str = "deployments.apps/v1";
const SETS: &str = "replicasets.apps/v1";
const PODS: &str = "pods/v1";
const JOBS: &str = "jobs.batch/v1";
const CRON_JOBS: &str = "cronjobs.batch/v1";
const CONTROLLERS: &str = "replicationcontrollers/v1";

/// It is never scheduled, so the image is never pulled.
fn template(app: &str, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"restartPolicy": restart, "containers": [{"name": "main", "image": "none"}]},
    })
}

fn deployment(name: &str, replicas: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": template(name, "Always"),
    }})
}

fn controller(name: &str, replicas: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"app": name}, "template": template(name, "Always"),
    }})
}

fn job(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"parallelism": 2, "completions": 2, "template": template(name, "Never")}})
}

/// Suspended until its last schedule is set to the past: then it is due once during the test.
fn cron_job(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "schedule": "0 0 1 1 *", "timeZone": "Etc/UTC", "suspend": true,
        "jobTemplate": {"spec": {"template": template(name, "Never")}},
    }})
}

/// A pod without a controller.
fn pod(name: &str, like: &ObjectSpec) -> Value {
    let mut pod = template(name, "Always");
    pod["metadata"] = json!({"name": name, "ownerReferences": like.owners, "finalizers": like.finalizers});
    pod
}

fn is_left_alone(object: &Value, owners: &[&str]) -> Result<()> {
    ensure!(owners_of(object) == owners, "{object}");
    ensure!(object["metadata"]["deletionTimestamp"].is_null(), "{object}");
    Ok(())
}

pub async fn of_a_deployment_everything_goes_or_only_the_reference_by_the_policy(s: &Scene) -> Result<()> {
    // One that is not deleted.
    s.create(DEPLOYMENTS, &deployment("another", 1)).await?;
    for policy in ["Background", "Foreground"] {
        s.create(DEPLOYMENTS, &deployment("web", 3)).await?;
        s.exactly(4, PODS).await?;
        s.delete(DEPLOYMENTS, "web", policy).await?;
        s.gone(DEPLOYMENTS, "web").await?;
        if policy == "Foreground" {
            let left = (s.all(SETS).await?.len(), s.all(PODS).await?.len());
            ensure!(left == (1, 1), "the deployment went before {left:?} sets and pods");
        }
        s.exactly(1, SETS).await?;
        s.exactly(1, PODS).await?;
    }
    s.create(DEPLOYMENTS, &deployment("web", 3)).await?;
    s.exactly(4, PODS).await?;
    s.delete(DEPLOYMENTS, "web", "Orphan").await?;
    s.gone(DEPLOYMENTS, "web").await?;
    s.settled("configmaps/v1").await?;
    let is_of_web = |it: &Value| it["metadata"]["labels"]["app"] == "web";
    let sets: Vec<Value> = s.all(SETS).await?.into_iter().filter(is_of_web).collect();
    ensure!(sets.len() == 1, "{sets:?}");
    is_left_alone(&sets[0], &[])?;
    let name = sets[0]["metadata"]["name"].as_str().unwrap_or_default();
    let pods: Vec<Value> = s.all(PODS).await?.into_iter().filter(is_of_web).collect();
    ensure!(pods.len() == 3, "{pods:?}");
    pods.iter().try_for_each(|pod| is_left_alone(pod, &[name]))
}

/// The Job controller removes its finalizer from the pods, though the Job is deleted by then.
pub async fn of_a_job_its_pods_go_unless_they_are_left_which_they_are_if_nothing_is_said(s: &Scene) -> Result<()> {
    for policy in ["Background", "Foreground", ""] {
        s.create(JOBS, &job("once")).await?;
        s.exactly(2, PODS).await?;
        s.delete(JOBS, "once", policy).await?;
        s.gone(JOBS, "once").await?;
        if !policy.is_empty() {
            s.exactly(0, PODS).await?;
        }
    }
    s.settled("configmaps/v1").await?;
    // The default policy of Jobs in v1 is to orphan.
    let pods = s.exactly(2, PODS).await?;
    pods.iter().try_for_each(|pod| is_left_alone(pod, &[]))
}

pub async fn of_a_cron_job_the_jobs_and_their_pods_go(s: &Scene) -> Result<()> {
    for policy in ["Background", "Foreground"] {
        s.create(CRON_JOBS, &cron_job("yearly")).await?;
        let due = json!({"status": {"lastScheduleTime": "2020-06-01T00:00:00Z"}});
        s.change(CRON_JOBS, "yearly/status", &due).await?;
        let go_on = json!({"spec": {"suspend": false}});
        s.change(CRON_JOBS, "yearly", &go_on).await?;
        s.exactly(1, JOBS).await?;
        s.exactly(1, PODS).await?;
        s.delete(CRON_JOBS, "yearly", policy).await?;
        s.exactly(0, JOBS).await?;
        s.exactly(0, PODS).await?;
        s.gone(CRON_JOBS, "yearly").await?;
    }
    Ok(())
}

pub async fn of_a_replication_controller_the_pods_go_though_it_still_creates_some(s: &Scene) -> Result<()> {
    let owner = s.create(CONTROLLERS, &controller("many", 30)).await?;
    eventually(LIMIT, "the first pods", async || {
        Ok((!s.all(PODS).await?.is_empty()).then_some(()))
    })
    .await?;
    let options = json!({
        "propagationPolicy": "Background", "preconditions": {"uid": owner["metadata"]["uid"]},
    });
    let path = format!("{}/many", s.path(CONTROLLERS));
    s.admin().delete(&path, Some(&options)).await?.ok()?;
    s.gone(CONTROLLERS, "many").await?;
    s.exactly(0, PODS).await.map(drop)
}

pub async fn of_a_replication_controller_the_pods_stay_if_nothing_is_said(s: &Scene) -> Result<()> {
    for (name, policy) in [("silent", ""), ("orphaning", "Orphan")] {
        s.create(CONTROLLERS, &controller(name, 10)).await?;
        eventually(LIMIT, "ten pods that the controller counts", async || {
            let controller = s.get(CONTROLLERS, name).await?.unwrap_or_default();
            Ok((controller["status"]["replicas"] == 10).then_some(()))
        })
        .await?;
        s.delete(CONTROLLERS, name, policy).await?;
        s.gone(CONTROLLERS, name).await?;
    }
    s.settled("configmaps/v1").await?;
    let pods = s.exactly(20, PODS).await?;
    pods.iter().try_for_each(|pod| is_left_alone(pod, &[]))
}

pub async fn a_replication_controller_is_kept_until_all_its_pods_are_gone(s: &Scene) -> Result<()> {
    s.create(CONTROLLERS, &controller("last", 20)).await?;
    s.exactly(20, PODS).await?;
    s.delete(CONTROLLERS, "last", "Foreground").await?;
    eventually(LIMIT, "the controller to be gone", async || {
        // Pods are listed after it, so each listed pod existed when it was deleted.
        let gone = s.get(CONTROLLERS, "last").await?.is_none();
        let pods = s.all(PODS).await?;
        ensure!(!gone || pods.is_empty(), "it went before {} pods", pods.len());
        Ok(gone.then_some(()))
    })
    .await
}

pub async fn pods_that_name_a_living_owner_too_stay_with_that_reference_alone(s: &Scene) -> Result<()> {
    let goes = s.create(CONTROLLERS, &controller("goes", 0)).await?;
    let stays = s.create(CONTROLLERS, &controller("stays", 0)).await?;
    for number in 0..10 {
        let mut owners = vec![to(&goes, true)];
        if number % 2 == 0 {
            owners.push(to(&stays, true));
        }
        s.create(PODS, &pod(&format!("pod-{number}"), &owned(owners))).await?;
    }
    s.delete(CONTROLLERS, "goes", "Foreground").await?;
    s.gone(CONTROLLERS, "goes").await?;
    s.settled("configmaps/v1").await?;
    let pods = s.exactly(5, PODS).await?;
    pods.iter().try_for_each(|pod| is_left_alone(pod, &["stays"]))
}

pub async fn three_pods_in_a_circle_go(s: &Scene) -> Result<()> {
    let mut pods = Vec::new();
    for name in ["one", "two", "three"] {
        pods.push(s.create(PODS, &pod(name, &ObjectSpec::default())).await?);
    }
    for (name, owner) in [("one", &pods[2]), ("two", &pods[0]), ("three", &pods[1])] {
        let patch = json!({"metadata": {"ownerReferences": [to(owner, true)]}});
        s.change(PODS, name, &patch).await?;
    }
    s.delete(PODS, "one", "Foreground").await?;
    s.exactly(0, PODS).await.map(drop)
}
