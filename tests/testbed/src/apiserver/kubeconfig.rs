//! Kubeconfigs for the server.

use std::fmt::Write as _;

/// A kubeconfig with one context for each user and token; the first one is current.
#[must_use]
pub fn kubeconfig(url: &str, users: &[(&str, &str)]) -> String {
    let current = users.first().map(|(user, _)| *user).unwrap_or_default();
    let mut text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: \"{current}\"\nclusters:\n- name: testbed\n  cluster:\n    \
         server: {url}\ncontexts:\n"
    );
    for (user, _) in users {
        let _ = write!(
            text,
            "- name: \"{user}\"\n  context:\n    cluster: testbed\n    user: \"{user}\"\n"
        );
    }
    text.push_str("users:\n");
    for (user, token) in users {
        let _ = write!(text, "- name: \"{user}\"\n  user:\n    token: \"{token}\"\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_user_is_current() {
        let text = kubeconfig("http://127.0.0.1:1", &[("admin", "secret"), ("system:node:x", "t")]);
        assert!(text.contains("current-context: \"admin\""));
        assert!(text.contains("- name: \"system:node:x\"\n  user:\n    token: \"t\""));
        assert!(text.contains("    server: http://127.0.0.1:1\n"));
    }
}
