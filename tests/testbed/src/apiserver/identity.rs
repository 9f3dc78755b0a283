//! Authentication: bearer tokens and their users.

/// The token of the administrator.
pub const ADMIN_TOKEN: &str = "admin";

/// The token of an agent's collector.
pub const COLLECTOR_TOKEN: &str = "collector";

const NODE_PREFIX: &str = "system:node:";

/// The user of a request.
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

// === impl User ===

impl User {
    /// The user behind an Authorization header; none if the token is unknown.
    #[must_use]
    pub fn of(authorization: Option<&str>) -> Option<Self> {
        let Some(authorization) = authorization else {
            return Some(User::Anonymous);
        };
        match authorization.strip_prefix("Bearer ")? {
            ADMIN_TOKEN => Some(User::Admin),
            COLLECTOR_TOKEN => Some(User::Collector),
            token => token.strip_prefix(NODE_PREFIX).map(|node| User::Node(node.to_owned())),
        }
    }

    /// Whether it may do everything.
    #[must_use]
    pub fn is_almighty(&self) -> bool {
        matches!(self, User::Admin | User::Collector)
    }

    /// The name that messages and the request log use.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            User::Admin => "admin".to_owned(),
            User::Collector => COLLECTOR_TOKEN.to_owned(),
            User::Node(node) => node_token(node),
            User::Anonymous => "system:anonymous".to_owned(),
        }
    }
}

/// The token of a node, which is also its user name.
#[must_use]
pub fn node_token(node: &str) -> String {
    format!("{NODE_PREFIX}{node}")
}
