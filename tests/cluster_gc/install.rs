//! Installation of the collector by an operator, with kubectl and the files of `deploy/` only.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{api::ApiServer as _, control_plane::ControlPlane, rest::Client};
use tokio::process::Command;

use crate::{
    agent::{ACCOUNT, Agent, BINARY, account},
    scene::{LIMIT, in_namespace, owned, plain},
};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Verb, group, resource and namespace of requests that must be forbidden.
const FORBIDDEN: [(&str, &str, &str, &str); 17] = [
    ("create", "", "pods", "default"),
    ("create", "", "pods/eviction", "default"),
    ("create", "", "pods/exec", "default"),
    ("create", "", "secrets", "kube-system"),
    ("create", "", "serviceaccounts/token", "kube-system"),
    ("create", "apps", "deployments", "default"),
    ("create", "coordination.k8s.io", "leases", "default"),
    ("create", "coordination.k8s.io", "leases", "kube-node-lease"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("bind", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("impersonate", "", "users", ""),
    ("update", "", "configmaps", "default"),
    ("update", "", "pods/status", "default"),
    ("update", "apps", "deployments", "default"),
    ("update", "coordination.k8s.io", "leases", "kube-node-lease"),
    ("deletecollection", "", "pods", "default"),
];

/// An operator's working directory with a kubectl for the cluster.
struct Operator {
    kubectl: PathBuf,
    directory: TempDir,
}

/// Output of a command that must succeed.
async fn printed(command: &mut Command) -> Result<String> {
    let output = command.kill_on_drop(true).output().await?;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{command:?}: {}: {out}{err}", output.status);
    Ok(out.into_owned())
}

/// Whether this client may do it.
async fn may(client: &Client, (verb, group, resource, namespace): (&str, &str, &str, &str)) -> Result<bool> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = json!({
        "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace,
    });
    let review = json!({"spec": {"resourceAttributes": attributes}});
    let answer = client.create(REVIEWS, &review).await?.ok()?;
    Ok(answer["status"]["allowed"] == true)
}

pub async fn one_manifest_and_one_command_make_credentials_that_pass_check_with_minimal_rights() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let operator = Operator::new(&plane).await?;
    // The second time changes nothing and is no error.
    for _ in 0..2 {
        let manifest = format!("{DEPLOY}/gc-rbac.yaml");
        printed(operator.kubectl().args(["apply", "-f", &manifest])).await?;
    }
    // The authorizer follows with a delay.
    plane.access_of(ACCOUNT).await?;

    let file = operator.path("gc.kubeconfig");
    let first = operator.credentials(&file, "240h").await?;
    let mode = fs::metadata(&file)?.permissions().mode();
    ensure!(mode & 0o077 == 0, "others can read it: {mode:o}");
    let output = operator.check(&file).await?;
    ensure!(!output.contains("FAIL") && !output.contains("WARN"), "{output}");
    for row in [
        "collector credentials",
        "collector API server",
        "collector rights",
        "ready: ",
    ] {
        ensure!(output.contains(row), "{row} is not in {output}");
    }
    let renewed = operator.credentials(&file, "480h").await?;
    ensure!(renewed != first, "the token is the old one");
    operator.check(&file).await?;

    let admin = plane.admin()?;
    let client = admin.with_token(&renewed);
    for wish in FORBIDDEN {
        ensure!(!may(&client, wish).await?, "it may {wish:?}");
        ensure!(
            may(&admin, wish).await?,
            "the administrator may not {wish:?} either, so the check is useless"
        );
    }
    let pods = in_namespace("pods/v1", "default");
    let pod = json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}});
    ensure!(client.create(&pods, &pod).await?.code() == 403, "it has created a pod");
    let maps = in_namespace("configmaps/v1", "default");
    let map = admin.create(&maps, &plain("map", &owned([]))).await?.ok()?;
    let path = format!("{maps}/map");
    ensure!(
        client.update(&path, &map).await?.code() == 403,
        "it has replaced an object"
    );
    client.delete(&path, None).await?.ok()?;
    Ok(())
}

pub async fn renewed_credentials_are_reported_with_their_new_expiry() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let operator = Operator::new(&plane).await?;
    // Valid for a day: worth a warning.
    let agent = Agent::start(&account(&plane).await?, "always")?;
    let hours_left = |status: &Value| {
        let end: Timestamp = status["credentialsExpire"].as_str()?.parse().ok()?;
        Some(end.duration_since(Timestamp::now()).as_hours())
    };
    let expires_within = |from: i64, to: i64| {
        let expires = move |status: &Value| hours_left(status).is_some_and(|hours| (from..to).contains(&hours));
        agent.until(LIMIT, "the expiry of its credentials", expires)
    };
    agent
        .during(async {
            expires_within(20, 25).await?;
            operator.credentials(&agent.kubeconfig(), "480h").await?;
            expires_within(470, 481).await
        })
        .await?;
    agent.stop().await
}

impl Operator {
    async fn new(plane: &ControlPlane) -> Result<Self> {
        let operator = Self {
            kubectl: ControlPlane::kubectl().await?,
            directory: tempfile::tempdir()?,
        };
        fs::write(operator.path("admin"), plane.admin_kubeconfig())?;
        Ok(operator)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Without the user's own settings.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let beside = self.kubectl.parent().unwrap_or(Path::new("/"));
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", beside.display());
        command.env_clear().env("PATH", path).env("HOME", self.directory.path());
        command.env("KUBECONFIG", self.path("admin"));
        command
    }

    fn kubectl(&self) -> Command {
        self.command(&self.kubectl)
    }

    /// Creates the file; returns its token.
    async fn credentials(&self, file: &Path, duration: &str) -> Result<String> {
        let script = format!("{DEPLOY}/gc-kubeconfig.sh");
        printed(self.command(Path::new(&script)).arg(file).arg(duration)).await?;
        let config: Value = serde_saphyr::from_str(&fs::read_to_string(file)?)?;
        let token = config["users"][0]["user"]["token"].as_str();
        Ok(token.context("there is no token in it")?.to_owned())
    }

    /// Output of `check` with these credentials, which must succeed.
    async fn check(&self, file: &Path) -> Result<String> {
        let mut command = self.command(Path::new(BINARY));
        command.args(["check", "--mode", "never", "--gc-kubeconfig"]).arg(file);
        command.arg("--state-dir").arg(self.path("state"));
        printed(command.arg("--socket").arg(self.path("socket"))).await
    }
}
