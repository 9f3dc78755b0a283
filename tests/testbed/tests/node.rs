//! What the private containerd, the pod starter and the search for leftovers promise. Needs root and a containerd.

use testbed::containerd::Containerd;

#[tokio::test]
async fn containerd_starts() {
    let begin = std::time::Instant::now();
    let containerd = Containerd::start().await.unwrap();
    eprintln!("start {:?}", begin.elapsed());
    let begin = std::time::Instant::now();
    containerd.stop().await.unwrap();
    eprintln!("stop {:?}", begin.elapsed());
}
