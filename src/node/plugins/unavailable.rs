//! A driver that is not there to be called.

use std::path::PathBuf;

use super::kind::Kind;
use crate::model::failure::Reasoned;

/// A driver that was needed and is not there to be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} driver {driver:?} is gone from this node: {why} (looked for below {registry_dir:?}); what it holds can only be \
     taken back once its pod runs here again"
)]
pub struct DriverUnavailable {
    /// Of which kind it would be.
    pub kind: Kind,
    /// Its name.
    pub driver: String,
    /// How that was seen.
    pub why: String,
    /// The directory in which drivers register.
    pub registry_dir: PathBuf,
}

impl Reasoned for DriverUnavailable {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        "unregistered".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_gone_is_told_with_where_it_was_looked_for_and_what_helps() {
        let gone = DriverUnavailable {
            kind: Kind::Csi,
            driver: "csi.example.com".to_owned(),
            why: "none of 3 sockets registers it".to_owned(),
            registry_dir: "/var/lib/kubelet/plugins_registry".into(),
        };
        assert_eq!(
            gone.to_string(),
            "CSI driver \"csi.example.com\" is gone from this node: none of 3 sockets registers it (looked for below \
             \"/var/lib/kubelet/plugins_registry\"); what it holds can only be taken back once its pod runs here again"
        );
    }
}
