//! The files that the agent is pointed to, or keeps: damaged, foreign, or changed while it runs.

use std::fs;

use pod_teardown::{config::ProblemKind, journal};

use crate::node::Node;

#[tokio::test(start_paused = true)]
async fn a_damaged_journal_ends_the_start_and_it_is_said_what_moving_it_away_costs() {
    let mut node = Node::new().await;
    fs::create_dir_all(&node.flags.state_dir).unwrap();
    fs::write(node.flags.state_dir.join(journal::FILE), "no journal").unwrap();
    node.launch().await;
    let problem = node.ended().await.unwrap_err();
    assert_eq!(problem.kind, ProblemKind::Configuration);
    let remedy = &problem.remedy;
    assert!(
        remedy.contains("move it away") && remedy.contains("hooks again"),
        "{problem}"
    );
}
