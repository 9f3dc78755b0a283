//! The items that `check` checks.

use serde::Serialize;

/// A group of items. The report lists the groups in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Flags, files and addresses.
    Configuration,
    /// The API server and the credentials for it.
    ApiServer,
    /// Rights of these credentials.
    Rights,
    /// The container runtime.
    Runtime,
    /// This node.
    Node,
    /// The kubelet of this node.
    Kubelet,
    /// The files that survive a restart of the agent.
    Journal,
    /// The garbage collector.
    Collector,
}

/// An item. Its row ID is its name in kebab case, and is the end of its anchor in the runbook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// Its group.
    pub group: Group,
    /// The row ID.
    pub id: &'static str,
    /// Name for users.
    pub name: &'static str,
}

/// Declares the items, and the list of all. The runbook has a section `check-ID` for each.
macro_rules! items {
    ($($item:ident = $group:ident, $id:literal, $name:literal;)*) => {
        impl Item {
            $(pub(crate) const $item: Self = Self { group: Group::$group, id: $id, name: $name };)*
            /// All items.
            pub const ALL: &'static [Self] = &[$(Self::$item),*];
        }
    };
}

items! {
    SETTINGS = Configuration, "settings", "settings";
    ENVIRONMENT = Configuration, "environment", "environment";
    ADMIN_SOCKET = Configuration, "admin-socket", "admin socket";
    METRICS_ADDRESS = Configuration, "metrics-address", "metrics address";
    CREDENTIALS = ApiServer, "credentials", "credentials";
    API_SERVER = ApiServer, "api-server", "API server";
    LIST_PODS = Rights, "list-pods", "list pods";
    WATCH_PODS = Rights, "watch-pods", "watch pods";
    PATCH_POD_STATUS = Rights, "patch-pods-status", "patch pods/status";
    DELETE_PODS = Rights, "delete-pods", "delete pods";
    PATCH_NODE_STATUS = Rights, "patch-nodes-status", "patch nodes/status";
    CREATE_EVENTS = Rights, "create-events", "create events";
    PATCH_EVENTS = Rights, "patch-events", "patch events";
    GET_LEASE = Rights, "get-lease", "get Lease";
    RUNTIME = Runtime, "runtime", "runtime";
    MOUNT_NAMESPACE = Runtime, "mount-namespace", "mount namespace";
    NODE_IDENTITY = Node, "node-identity", "node identity";
    CGROUPS = Node, "cgroups", "cgroups";
    OTHER_AGENTS = Node, "other-agents", "other agents";
    KUBELET = Kubelet, "kubelet", "kubelet";
    KUBELET_FLAGS = Kubelet, "kubelet-flags", "kubelet flags";
    K3S = Kubelet, "k3s", "k3s";
    JOURNAL = Journal, "journal", "journal";
    QUARANTINED_FILES = Journal, "quarantined-files", "quarantined files";
    COLLECTOR_CREDENTIALS = Collector, "collector-credentials", "collector credentials";
    COLLECTOR_API_SERVER = Collector, "collector-api-server", "collector API server";
    COLLECTOR_RIGHTS = Collector, "collector-rights", "collector rights";
    COLLECTOR_KINDS = Collector, "collector-kinds", "collector kinds";
}

// === impl Group ===

impl Group {
    /// Heading in the report.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Configuration => "Configuration",
            Self::ApiServer => "API server",
            Self::Rights => "Rights",
            Self::Runtime => "Runtime",
            Self::Node => "Node",
            Self::Kubelet => "Kubelet",
            Self::Journal => "Journal",
            Self::Collector => "Collector",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const RUNBOOK: &str = include_str!("../../../docs/how-to/runbook.md");

    #[test]
    fn runbook_has_a_section_for_every_row() {
        let headings = RUNBOOK.lines().filter_map(|line| line.strip_prefix("### check: "));
        let headings = headings.map(|name| name.to_lowercase().replace(' ', "-"));
        let tags = RUNBOOK.split("<a id=\"check-").skip(1);
        let tags = tags.map(|tag| tag.split('"').next().unwrap().to_owned());
        let anchors: BTreeSet<String> = headings.chain(tags).collect();
        for Item { id, .. } in Item::ALL {
            assert!(anchors.contains(*id), "{id} is missing");
        }
    }

    #[test]
    fn row_id_is_unique_and_the_name_in_kebab_case() {
        let ids: BTreeSet<&str> = Item::ALL.iter().map(|item| item.id).collect();
        assert_eq!(ids.len(), Item::ALL.len());
        for item in Item::ALL {
            assert_eq!(item.id, item.name.to_lowercase().replace([' ', '/'], "-"));
        }
    }
}
