//! Who usually removes a finalizer of a pod.

/// Finalizers of Kubernetes and of known operators. A name that ends in `/` stands for all finalizers of this domain.
const KNOWN: &[(&str, &str)] = &[
    (
        "batch.kubernetes.io/job-tracking",
        "the Job controller in kube-controller-manager",
    ),
    (
        "foregroundDeletion",
        "the garbage collector, once the pod's dependents are deleted",
    ),
    (
        "orphan",
        "the garbage collector, once the pod's dependents are orphaned",
    ),
    (
        "kubernetes.io/pvc-protection",
        "the PVC protection controller in kube-controller-manager",
    ),
    (
        "kubernetes.io/pv-protection",
        "the PV protection controller in kube-controller-manager",
    ),
    (
        "kubernetes.io/pod-protection",
        "the controller that protects the pod's resources",
    ),
    (
        "resource.kubernetes.io/",
        "the ResourceClaim controller in kube-controller-manager",
    ),
    (
        "service.kubernetes.io/",
        "the service controller in cloud-controller-manager",
    ),
    ("kueue.x-k8s.io/", "Kueue"),
    ("elbv2.k8s.aws/", "the AWS Load Balancer Controller"),
    ("networking.gke.io/", "the GKE network controllers"),
    ("cilium.io/", "Cilium"),
    ("projectcalico.org/", "Calico"),
    ("longhorn.io/", "Longhorn"),
    ("ceph.rook.io/", "Rook"),
    ("argoproj.io/", "Argo"),
    ("tekton.dev/", "Tekton Pipelines"),
    ("chains.tekton.dev/", "Tekton Chains"),
    ("sparkoperator.k8s.io/", "the Spark operator"),
    ("strimzi.io/", "Strimzi"),
    ("cattle.io/", "Rancher"),
];

/// Who usually removes it. A finalizer that is not known has the domain of its controller in its name.
pub fn removed_by(finalizer: &str) -> String {
    let domain = finalizer.split_once('/').map(|(domain, _)| domain);
    let is_meant = |known: &str| match known.strip_suffix('/') {
        Some(known) => domain.is_some_and(|domain| {
            domain
                .strip_suffix(known)
                .is_some_and(|before| before.is_empty() || before.ends_with('.'))
        }),
        None => finalizer == known,
    };
    match (KNOWN.iter().find(|(known, _)| is_meant(known)), domain) {
        (Some((_, by)), _) => (*by).to_owned(),
        (None, Some(domain)) => format!("the controller that set it; its domain is {domain}"),
        (None, None) => "the controller that set it; its name has no domain".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remover_is_known_by_name_or_domain_else_the_domain_is_named() {
        for (finalizer, words) in [
            ("batch.kubernetes.io/job-tracking", "Job controller"),
            ("foregroundDeletion", "garbage collector"),
            ("orphan", "garbage collector"),
            ("kubernetes.io/pvc-protection", "PVC protection"),
            ("service.kubernetes.io/load-balancer-cleanup", "service controller"),
            ("kueue.x-k8s.io/managed", "Kueue"),
            ("workflows.argoproj.io/artifact-gc", "Argo"),
            ("example.com/hold", "its domain is example.com"),
            // Another domain that ends alike.
            ("notcilium.io/x", "its domain is notcilium.io"),
            ("plain", "no domain"),
        ] {
            let by = removed_by(finalizer);
            assert!(by.contains(words), "{finalizer}: {by}");
        }
    }
}
