//! QoS classes, and the quantities that they are computed from.

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Determines the parent cgroup of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosClass {
    /// Every container has limits of CPU and memory, and requests all of them.
    Guaranteed,
    /// Something is requested or limited.
    Burstable,
    /// No requests and no limits.
    BestEffort,
}

/// The kernel's minimum.
const MIN_SHARES: i64 = 2;

impl QosClass {
    /// The one in the status, else computed.
    pub fn of(pod: &Pod) -> Self {
        let stated = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
        match stated {
            Some("Guaranteed") => Self::Guaranteed,
            Some("Burstable") => Self::Burstable,
            Some("BestEffort") => Self::BestEffort,
            _ => Self::computed(pod),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// Pods here request all that they limit, if they limit anything.
    fn computed(pod: &Pod) -> Self {
        let is_set = |container: &Container, name| request(container, name).is_some();
        let mut containers = all_containers(pod);
        if containers.any(|container| is_set(container, "cpu") || is_set(container, "memory")) {
            Self::Burstable
        } else {
            Self::BestEffort
        }
    }
}

/// Init containers first.
pub fn all_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// CPU weight of a container or, with all of them, of a pod, from its requests.
pub fn cpu_shares<'a>(containers: impl IntoIterator<Item = &'a Container>) -> i64 {
    let milli: i64 = containers
        .into_iter()
        .filter_map(|container| request(container, "cpu"))
        .sum();
    (milli * 1024 / 1000).max(MIN_SHARES)
}

/// Memory limit in bytes; 0 for none.
pub fn memory_limit(container: &Container) -> i64 {
    limit(container, "memory").unwrap_or_default() / 1000
}

/// In thousandths; a limit without a request counts as request.
fn request(container: &Container, name: &str) -> Option<i64> {
    let requests = container.resources.as_ref()?.requests.as_ref();
    requests
        .and_then(|requests| milli(requests.get(name)?))
        .or_else(|| limit(container, name))
}

fn limit(container: &Container, name: &str) -> Option<i64> {
    milli(container.resources.as_ref()?.limits.as_ref()?.get(name)?)
}

/// A quantity in thousandths of its unit. Exponents and smaller fractions are not supported.
pub fn milli(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.trim();
    let (number, suffix) = text.split_at(text.find(|char: char| char.is_alphabetic()).unwrap_or(text.len()));
    let factor = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let thousandths: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    whole
        .parse::<i64>()
        .ok()?
        .checked_mul(factor)?
        .checked_add(thousandths * factor / 1000)
}
