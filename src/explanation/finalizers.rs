//! Who usually removes a finalizer of a pod.

/// Who usually removes it. A finalizer that is not one of Kubernetes has the domain of its controller in its name.
pub(super) fn removed_by(finalizer: &str) -> String {
    let domain = finalizer.split_once('/').map(|(domain, _)| domain);
    let is_in = |known: &str| {
        let before = domain.and_then(|domain| domain.strip_suffix(known));
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    let by = match (finalizer, domain) {
        ("batch.kubernetes.io/job-tracking", _) => "the Job controller in kube-controller-manager",
        ("foregroundDeletion", _) => "the garbage collector, once its dependents are deleted",
        ("orphan", _) => "the garbage collector, once its dependents are orphaned",
        ("kubernetes.io/pvc-protection", _) => "the PVC protection controller in kube-controller-manager",
        ("kubernetes.io/pv-protection", _) => "the PV protection controller in kube-controller-manager",
        _ if is_in("resource.kubernetes.io") => "the ResourceClaim controller in kube-controller-manager",
        _ if is_in("service.kubernetes.io") => "the service controller in cloud-controller-manager",
        (_, Some(domain)) => return format!("the controller that set it; its domain is {domain}"),
        (_, None) => "the controller that set it; its name has no domain",
    };
    by.to_owned()
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
            ("lb.service.kubernetes.io/x", "service controller"),
            ("example.com/hold", "its domain is example.com"),
            // Another domain that ends alike.
            ("noservice.kubernetes.io/x", "its domain is noservice.kubernetes.io"),
            ("plain", "no domain"),
        ] {
            let by = removed_by(finalizer);
            assert!(by.contains(words), "{finalizer}: {by}");
        }
    }
}
