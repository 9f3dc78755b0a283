//! Objects that kube-controller-manager's controllers create. Pods are never scheduled, so their deletion is immediate.
//! Most claims are also Kubernetes' own end-to-end tests.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::scene::{LIMIT, Scene, eventually, owners_of};

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

fn is_left_alone(object: &Value, owners: &[&str]) -> Result<()> {
    ensure!(owners_of(object) == owners, "{object}");
    ensure!(object["metadata"]["deletionTimestamp"].is_null(), "{object}");
    Ok(())
}

pub async fn the_policy_decides_whether_objects_of_a_deployment_are_deleted_or_orphaned(s: &Scene) -> Result<()> {
    // One that is not deleted.
    s.create(DEPLOYMENTS, &deployment("another", 1)).await?;
    for policy in ["Background", "Foreground"] {
        s.create(DEPLOYMENTS, &deployment("web", 3)).await?;
        s.wait_for_count(4, PODS).await?;
        s.delete(DEPLOYMENTS, "web", policy).await?;
        s.wait_for_deletion(DEPLOYMENTS, "web").await?;
        if policy == "Foreground" {
            let left = (s.list(SETS).await?.len(), s.list(PODS).await?.len());
            ensure!(left == (1, 1), "the deployment went before {left:?} sets and pods");
        }
        s.wait_for_count(1, SETS).await?;
        s.wait_for_count(1, PODS).await?;
    }
    s.create(DEPLOYMENTS, &deployment("web", 3)).await?;
    s.wait_for_count(4, PODS).await?;
    s.delete(DEPLOYMENTS, "web", "Orphan").await?;
    s.wait_for_deletion(DEPLOYMENTS, "web").await?;
    s.wait_until_processed("configmaps/v1").await?;
    let is_of_web = |it: &Value| it["metadata"]["labels"]["app"] == "web";
    let sets: Vec<Value> = s.list(SETS).await?.into_iter().filter(is_of_web).collect();
    ensure!(sets.len() == 1, "{sets:?}");
    is_left_alone(&sets[0], &[])?;
    let name = sets[0]["metadata"]["name"].as_str().unwrap_or_default();
    let pods: Vec<Value> = s.list(PODS).await?.into_iter().filter(is_of_web).collect();
    ensure!(pods.len() == 3, "{pods:?}");
    pods.iter().try_for_each(|pod| is_left_alone(pod, &[name]))
}

/// The Job controller removes its finalizer from the pods, though the Job is deleted by then.
pub async fn pods_of_a_job_are_deleted_with_a_policy_and_orphaned_by_default(s: &Scene) -> Result<()> {
    for policy in ["Background", "Foreground", ""] {
        s.create(JOBS, &job("once")).await?;
        s.wait_for_count(2, PODS).await?;
        s.delete(JOBS, "once", policy).await?;
        s.wait_for_deletion(JOBS, "once").await?;
        if !policy.is_empty() {
            s.wait_for_count(0, PODS).await?;
        }
    }
    s.wait_until_processed("configmaps/v1").await?;
    // The default policy of Jobs in v1 is to orphan.
    let pods = s.wait_for_count(2, PODS).await?;
    pods.iter().try_for_each(|pod| is_left_alone(pod, &[]))
}

pub async fn jobs_and_pods_of_a_cron_job_are_deleted(s: &Scene) -> Result<()> {
    for policy in ["Background", "Foreground"] {
        s.create(CRON_JOBS, &cron_job("yearly")).await?;
        let due = json!({"status": {"lastScheduleTime": "2020-06-01T00:00:00Z"}});
        s.change(CRON_JOBS, "yearly/status", &due).await?;
        let resume = json!({"spec": {"suspend": false}});
        s.change(CRON_JOBS, "yearly", &resume).await?;
        s.wait_for_count(1, JOBS).await?;
        s.wait_for_count(1, PODS).await?;
        s.delete(CRON_JOBS, "yearly", policy).await?;
        s.wait_for_count(0, JOBS).await?;
        s.wait_for_count(0, PODS).await?;
        s.wait_for_deletion(CRON_JOBS, "yearly").await?;
    }
    Ok(())
}

pub async fn pods_of_a_replication_controller_are_deleted_while_it_still_creates_some(s: &Scene) -> Result<()> {
    let owner = s.create(CONTROLLERS, &controller("many", 30)).await?;
    eventually(LIMIT, "the first pods", async || {
        Ok((!s.list(PODS).await?.is_empty()).then_some(()))
    })
    .await?;
    let options = json!({
        "propagationPolicy": "Background", "preconditions": {"uid": owner["metadata"]["uid"]},
    });
    let path = format!("{}/many", s.path(CONTROLLERS));
    s.admin().delete(&path, Some(&options)).await?.ok()?;
    s.wait_for_deletion(CONTROLLERS, "many").await?;
    s.wait_for_count(0, PODS).await.map(drop)
}
