//! Real controllers on a real control plane: they create and delete, and only the garbage collector deletes dependents.

#[path = "controllers/cluster.rs"]
mod cluster;
#[path = "controllers/objects.rs"]
mod objects;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testbed::{
    api::ApiServer,
    bench::usage::Usage,
    control_plane::{ControlPlane, Leader, Settings},
    wait::eventually,
};

use self::cluster::{Cluster, LIMIT};

/// Duration of a Lease without renewal: longer than the default, so that a busy machine does not end a leader.
const TERM: Duration = Duration::from_secs(20);
/// The Lease has to expire, and candidates check it every 2 s.
const SUCCESSION: Duration = Duration::from_secs(60);

fn all_but_the_collector() -> Settings {
    Settings::all_but_the_collector().without_limits()
}

fn only_the_collector() -> Settings {
    Settings::only_the_collector().without_limits()
}

#[tokio::test]
async fn what_a_deployment_leaves_is_there_until_a_collector_comes() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let cluster = Cluster::new(&plane, "deployments").await?;
    let controllers = plane.start_controllers(&all_but_the_collector()).await?;
    let test = async {
        cluster.create("deployments", &objects::deployment("web", 2)).await?;
        let set = cluster.one("replicasets").await?;
        let pods = cluster.exactly(2, "pods").await?;
        ensure!(owner(&set) == ("Deployment", "web"), "{set}");
        for pod in &pods {
            ensure!(owner(pod).0 == "ReplicaSet", "{pod}");
            ensure!(pod["status"]["phase"] == "Pending", "{pod}");
        }

        cluster.delete_in_the_background("deployments", "web").await?;
        // Another one, from its birth to its pods: the controllers have had their time for the first.
        cluster
            .create("deployments", &objects::deployment("another", 1))
            .await?;
        let pods = cluster.exactly(3, "pods").await?;
        let sets = cluster.exactly(2, "replicasets").await?;
        for left in pods.iter().chain(&sets) {
            ensure!(left["metadata"]["deletionTimestamp"].is_null(), "{left}");
        }

        let collector = plane.start_controllers(&only_the_collector()).await?;
        let collected = async {
            let left = cluster.one("replicasets").await?;
            ensure!(owner(&left) == ("Deployment", "another"), "{left}");
            cluster.one("pods").await
        };
        collector.during(collected).await
    };
    controllers.during(test).await.map(drop)
}

/// The job controller removes the finalizer of its pods, although the Job is deleted by then.
#[tokio::test]
async fn what_a_job_leaves_is_there_until_a_collector_comes() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let cluster = Cluster::new(&plane, "jobs").await?;
    let controllers = plane.start_controllers(&all_but_the_collector()).await?;
    let test = async {
        cluster.create("jobs", &objects::job("once")).await?;
        let pod = cluster.one("pods").await?;
        ensure!(owner(&pod) == ("Job", "once"), "{pod}");
        ensure!(
            pod["metadata"]["finalizers"][0] == "batch.kubernetes.io/job-tracking",
            "{pod}"
        );

        cluster.delete_in_the_background("jobs", "once").await?;
        cluster.create("jobs", &objects::job("another")).await?;
        for pod in cluster.exactly(2, "pods").await? {
            ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
        }

        let collector = plane.start_controllers(&only_the_collector()).await?;
        let left = collector.during(cluster.one("pods")).await?;
        ensure!(owner(&left) == ("Job", "another"), "{left}");
        Ok(())
    };
    controllers.during(test).await
}

#[tokio::test]
async fn a_cron_job_that_is_late_starts_a_job_and_both_levels_below_it_are_collected() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let cluster = Cluster::new(&plane, "cron-jobs").await?;
    let controllers = plane.start_controllers(&all_but_the_collector()).await?;
    let test = async {
        cluster.create("cronjobs", &objects::cron_job("yearly")).await?;
        cluster
            .merge("cronjobs/yearly/status", &objects::last_scheduled_long_ago())
            .await?;
        cluster.merge("cronjobs/yearly", &objects::go_on()).await?;
        let job = cluster.one("jobs").await?;
        ensure!(owner(&job) == ("CronJob", "yearly"), "{job}");
        cluster.one("pods").await?;

        cluster.delete_in_the_background("cronjobs", "yearly").await?;
        let collector = plane.start_controllers(&only_the_collector()).await?;
        let collected = async {
            cluster.exactly(0, "jobs").await?;
            cluster.exactly(0, "pods").await
        };
        collector.during(collected).await
    };
    controllers.during(test).await.map(drop)
}

#[tokio::test]
async fn one_of_two_leads_and_the_other_one_follows_when_it_is_killed() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let cluster = Cluster::new(&plane, "leaders").await?;
    ensure!(Leader::of(cluster.admin()).await?.is_none());
    let settings = only_the_collector().with_leader_election(TERM);
    let mut first = plane.start_controllers(&settings).await?;
    first.until_at_work().await?;
    let mut second = plane.start_controllers(&settings).await?;

    let leader = async || Leader::of(cluster.admin()).await?.context("no leader");
    let before = leader().await?;
    let renewed = eventually(LIMIT, "the Lease to be renewed", async || {
        let now = leader().await?;
        Ok((now.renewed > before.renewed).then_some(now))
    });
    ensure!(first.during(renewed).await?.holder == before.holder);
    let health = second.client().get("/healthz?verbose").await?.ok()?;
    ensure!(!health.to_string().contains("-controller ok"), "{health}");

    drop(first);
    let last = leader().await?;
    let followed = eventually(SUCCESSION, "another leader", async || {
        let now = leader().await?;
        Ok((now.holder != before.holder).then_some(now))
    });
    let after = second.during(followed).await?;
    ensure!(after.transitions == before.transitions + 1, "{after:?}");
    // It was not released, so it had to expire.
    let between = Duration::try_from(after.renewed.duration_since(last.renewed))?;
    ensure!(between >= TERM, "{between:?}");
    second.until_at_work().await
}

#[tokio::test]
async fn the_collector_works_under_an_account_of_its_own() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let account = "/api/v1/namespaces/kube-system/serviceaccounts/generic-garbage-collector";
    let admin = plane.admin()?;
    ensure!(admin.get(account).await?.code() == 404);
    let _collector = plane.start_controllers(&only_the_collector()).await?;
    admin.get(account).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn the_collector_is_measured_from_outside_and_gone_when_it_is_dropped() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let settings = only_the_collector().with_collecting_workers(5);
    let collector = plane.start_controllers(&settings).await?;
    let usage = Usage::of(collector.pid());
    ensure!(usage.resident()? > 1.0 && !usage.cpu()?.is_zero());
    let metrics = collector.client().get("/metrics").await?.ok()?;
    let metrics = metrics.as_str().context("metrics are text")?;
    ensure!(metrics.contains("garbage_collector_attempt_to_delete"));
    drop(collector);
    ensure!(usage.resident().is_err(), "it still runs");
    Ok(())
}

#[tokio::test]
async fn failure_while_controllers_run_shows_the_end_of_their_log() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let collector = plane.start_controllers(&only_the_collector()).await?;
    let failed: Result<()> = collector.during(async { bail!("no pod was there") }).await;
    let text = format!("{:#}", failed.unwrap_err());
    ensure!(text.contains("Proceeding to collect garbage"), "{text}");
    ensure!(text.ends_with("no pod was there"), "{text}");
    Ok(())
}

/// Kind and name of the only owner.
fn owner(object: &Value) -> (&str, &str) {
    let owner = &object["metadata"]["ownerReferences"][0];
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    (text("kind"), text("name"))
}
