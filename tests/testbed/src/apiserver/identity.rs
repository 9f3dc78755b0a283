//! Authentication: bearer tokens, which are the names of their users.

use crate::api::{ADMIN, node_user};

/// The user of an agent's collector.
pub const COLLECTOR: &str = "collector";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// May do everything.
    Admin,
    /// All rights, under a separate name.
    Collector,
    /// A node, with the rights of its kubelet.
    Node(String),
    /// No token: may only ask whether the server is well.
    Anonymous,
}

impl User {
    /// The user behind an Authorization header; none if the token is unknown.
    pub fn of(authorization: Option<&str>) -> Option<Self> {
        let Some(authorization) = authorization else {
            return Some(User::Anonymous);
        };
        match authorization.strip_prefix("Bearer ")? {
            ADMIN => Some(User::Admin),
            COLLECTOR => Some(User::Collector),
            token => token
                .strip_prefix("system:node:")
                .map(|node| User::Node(node.to_owned())),
        }
    }

    /// Whether it may do everything.
    pub fn is_almighty(&self) -> bool {
        matches!(self, User::Admin | User::Collector)
    }

    /// The name that messages and the request log use.
    pub fn name(&self) -> String {
        match self {
            User::Admin => ADMIN.to_owned(),
            User::Collector => COLLECTOR.to_owned(),
            User::Node(node) => node_user(node),
            User::Anonymous => "system:anonymous".to_owned(),
        }
    }
}
