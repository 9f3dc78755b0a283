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

/// Also when some agents wait for kube-controller-manager and yield the Lease to others that do not.
#[tokio::test(start_paused = true)]
async fn under_random_faults_at_most_one_agent_works_and_one_does_in_the_end() {
    let always = &[Mode::Always; 6][..];
    let mixed = &[Mode::Auto, Mode::Auto, Mode::Auto, Mode::Always, Mode::Always];
    for (seed, modes) in (0..12)
        .map(|seed| (seed, always))
        .chain((0..16).map(|seed| (seed, &mixed[..])))
    {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let mut agents = Vec::new();
        for (number, mode) in modes.iter().enumerate() {
            agents.push(cluster.agent(&format!("agent-{seed}-{number}"), *mode).await);
        }
        let mut watcher = assert_at_most_one(&agents.iter().collect::<Vec<_>>());
        let has_manager = modes != always;
        let mut worked = 0;
        for _ in 0..if has_manager { 60 } else { 25 } {
            sleep(dice.millis(if has_manager { 25_000 } else { 15_000 })).await;
            if has_manager && dice.one_in(8) {
                let renewed = cluster.try_renew("kube-controller-manager", "master", Span::new());
                // A fault may prevent it.
                renewed.await.ok();
            }
            // One agent gets no faults, so that one can win in the end.
            if !has_manager || dice.one_in(3) {
                random_event(&cluster, &mut agents[1..], &mut dice).await;
            }
            worked += usize::from(agents.iter().any(Agent::works));
        }
        expect_no_violation(&mut watcher);
        println!("{worked} times one of them worked");
        cluster.api.faults().clear();
        for agent in &agents {
            agent.net.send_replace(Net::Up);
        }
        wait_until(secs(120), || agents.iter().any(Agent::works)).await;
        expect_no_violation(&mut watcher);
    }
}
