//! Who asks: bearer tokens, and the users behind them.

/// The token of the administrator.
pub const ADMIN_TOKEN: &str = "admin";

const NODE_PREFIX: &str = "system:node:";

/// Somebody who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// May do everything.
    Admin,
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
            token => token.strip_prefix(NODE_PREFIX).map(|node| User::Node(node.to_owned())),
        }
    }

    /// The name that messages and the request log use.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            User::Admin => "admin".to_owned(),
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
