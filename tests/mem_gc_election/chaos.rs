//! Random faults on several agents. A failure prints the seed that repeats it.

use jiff::Span;
use pod_teardown::collector::Mode;
use testbed::{
    apiserver::faults::{Action, Fault},
    dice::Dice,
};
use tokio::time::sleep;

use crate::cluster::{Agent, Cluster, LEASES, Net, assert_at_most_one, dice, expect_no_violation, secs, wait_until};

async fn random_event(cluster: &Cluster, agents: &mut [Agent], dice: &mut Dice) {
    let place = dice.up_to(agents.len());
    let net = |net| agents[place].net.send_replace(net);
    match dice.up_to(8) {
        0 => drop(net(Net::Down)),
        1 => drop(net(Net::Hangs)),
        2 | 3 => drop(net(Net::Up)),
        4 => {
            let path = format!("{LEASES}/pod-teardown-gc");
            // A fault may prevent it.
            cluster.admin.delete(&path, None).await.ok();
        }
        5 => {
            let times = 1 + u32::try_from(dice.up_to(4)).unwrap();
            cluster
                .api
                .faults()
                .inject(Fault::new(Action::LoseResponse).times(times));
        }
        6 => {
            let times = 1 + u32::try_from(dice.up_to(4)).unwrap();
            let delay = Fault::delay(dice.millis(12_000)).verb("update");
            cluster.api.faults().inject(delay.times(times));
        }
        _ => agents[place].crash().await,
    }
}

#[tokio::test(start_paused = true)]
async fn under_random_faults_at_most_one_agent_works_and_one_does_in_the_end() {
    for seed in 0..12 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let mut agents = Vec::new();
        for number in 0..6 {
            agents.push(cluster.agent(&format!("agent-{seed}-{number}"), Mode::Always).await);
        }
        let mut watcher = assert_at_most_one(&agents.iter().collect::<Vec<_>>());
        let mut worked = 0;
        // One agent gets no faults, so that one can win in the end.
        let (_, others) = agents.split_first_mut().unwrap();
        for _ in 0..25 {
            sleep(dice.millis(15_000)).await;
            random_event(&cluster, others, &mut dice).await;
            worked += usize::from(others.iter().any(Agent::works));
        }
        expect_no_violation(&mut watcher);
        println!("{worked} of 25 times one of them worked");
        cluster.api.faults().clear();
        for agent in &agents {
            agent.net.send_replace(Net::Up);
        }
        wait_until(secs(120), || agents.iter().any(Agent::works)).await;
        expect_no_violation(&mut watcher);
    }
}

/// Some agents wait for kube-controller-manager and yield the Lease to others that do not.
#[tokio::test(start_paused = true)]
async fn under_random_faults_at_most_one_agent_works_when_some_yield_to_others() {
    for seed in 0..16 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let mut agents = Vec::new();
        for number in 0..5 {
            let mode = if number < 3 { Mode::Auto } else { Mode::Always };
            agents.push(cluster.agent(&format!("agent-{seed}-{number}"), mode).await);
        }
        let mut watcher = assert_at_most_one(&agents.iter().collect::<Vec<_>>());
        let (mut automatic, mut always) = (0, 0);
        for _ in 0..60 {
            sleep(dice.millis(25_000)).await;
            if dice.one_in(8) {
                // A fault may prevent it.
                cluster
                    .try_renew("kube-controller-manager", "master", Span::new())
                    .await
                    .ok();
            }
            if dice.one_in(3) {
                random_event(&cluster, &mut agents[1..], &mut dice).await;
            }
            automatic += usize::from(agents[..3].iter().any(Agent::works));
            always += usize::from(agents[3..].iter().any(Agent::works));
        }
        expect_no_violation(&mut watcher);
        println!("{automatic} and {always} of 60 times one of them worked");
    }
}
