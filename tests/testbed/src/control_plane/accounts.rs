//! Service accounts of controllers that run outside of the cluster, with their rights and subject to API priority and
//! fairness. The administrator is exempt from that, unlike controllers in a cluster.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{ControlPlane, START_TIMEOUT};
use crate::{api::Access, wait::eventually};

const ACCOUNTS: &str = "/api/v1/namespaces/kube-system/serviceaccounts";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Longer than any measurement.
const VALID_SECONDS: u32 = 86_400;

impl ControlPlane {
    /// A service account in kube-system with a ClusterRole of the bootstrap policy, and Leases there for leader election.
    ///
    /// Its rights are effective when this returns.
    pub async fn account(&self, name: &str, cluster_role: &str) -> Result<Access> {
        let create = async |path: &str, object: Value| -> Result<Value> {
            let answer = self.admin.create(path, &object).await?;
            Ok(answer.ok()?)
        };
        let metadata = json!({"name": name});
        create(ACCOUNTS, json!({"metadata": metadata})).await?;
        let role = |kind: &str, role: &str| {
            json!({
                "metadata": metadata,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
                "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": name}],
            })
        };
        let bindings = format!("{RBAC}/clusterrolebindings");
        create(&bindings, role("ClusterRole", cluster_role)).await?;
        let rules = json!([{
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["create", "get", "update", "delete"],
        }]);
        let local = format!("{RBAC}/namespaces/kube-system");
        create(&format!("{local}/roles"), json!({"metadata": metadata, "rules": rules})).await?;
        create(&format!("{local}/rolebindings"), role("Role", name)).await?;

        self.access_of(name).await
    }

    /// A token of a service account in kube-system with the collector's rights, which are effective when this returns.
    pub async fn access_of(&self, name: &str) -> Result<Access> {
        let request = json!({"spec": {"expirationSeconds": VALID_SECONDS}});
        let token = self.admin.create(&format!("{ACCOUNTS}/{name}/token"), &request).await?;
        let token = token.ok()?;
        let token = token["status"]["token"].as_str().context("no token was issued")?;
        // The authorizer learns of roles and bindings with a delay.
        let client = self.admin.with_token(token);
        for attributes in [
            json!({"verb": "delete", "resource": "configmaps", "namespace": "default"}),
            json!({"verb": "create", "group": "coordination.k8s.io", "resource": "leases", "namespace": "kube-system"}),
        ] {
            let review = json!({"spec": {"resourceAttributes": attributes}});
            eventually(START_TIMEOUT, &format!("the rights of {name}"), async || {
                // A token that is not known yet is refused.
                let allowed = match client.create(REVIEWS, &review).await?.ok() {
                    Ok(answer) => answer["status"]["allowed"] == true,
                    Err(_) => false,
                };
                Ok(allowed.then_some(()))
            })
            .await?;
        }
        Ok(self.access_with(name, token.to_owned()))
    }
}
