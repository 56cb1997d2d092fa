use super::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

fn batch(change: impl FnOnce(&mut Options)) -> Batch {
    let mut options = Options { max_batched_tokens: 64, ..Options::default() };
    change(&mut options);
    let mut batch = Batch::new(options);
    batch.tally.tenant("a");
    batch
}

fn push(batch: &mut Batch, prompt: u64, output: u64) -> UnboundedReceiver<Event> {
    let (events, received) = unbounded_channel();
    batch.push(Sequence::new(0, prompt, output, Vec::new(), events));
    received
}

fn step(batch: &mut Batch) -> Option<f64> {
    let seconds = batch.plan()?;
    batch.finish_step();
    Some(seconds)
}

fn tokens(received: &mut UnboundedReceiver<Event>) -> usize {
    std::iter::from_fn(|| received.try_recv().ok()).filter(|one| *one == Event::Token).count()
}

#[test]
fn a_prompt_is_computed_in_chunks_and_then_each_step_makes_a_token() {
    let mut batch = batch(|_| ());
    let mut received = push(&mut batch, 100, 3);
    let times: Vec<_> = std::iter::from_fn(|| step(&mut batch)).collect();
    // 64 and 36 tokens of the prompt, then two more tokens of the output.
    let expected = [0.01128, 0.01072, 0.0101, 0.0101];
    assert_eq!(times.len(), expected.len());
    assert!(times.iter().zip(expected).all(|(time, right)| (time - right).abs() < 1e-9));
    assert_eq!(tokens(&mut received), 3);
    let all = batch.tally.tenants[0];
    assert_eq!((all.prompt, all.output, all.finished), (100, 3, 1));
}

#[test]
fn no_more_sequences_run_than_allowed_and_the_first_to_come_is_the_first_to_run() {
    let mut batch = batch(|options| options.max_num_seqs = 2);
    let mut all: Vec<_> = (0..3).map(|_| push(&mut batch, 4, 2)).collect();
    step(&mut batch);
    assert_eq!((batch.running(), batch.waiting()), (2, 1));
    assert_eq!(all.iter_mut().map(tokens).collect::<Vec<_>>(), [1, 1, 0]);
}

#[test]
fn the_newest_sequence_is_preempted_and_computes_everything_again() {
    let mut batch = batch(|options| options.kv_tokens = 64);
    let (mut old, mut new) = (push(&mut batch, 30, 20), push(&mut batch, 30, 20));
    while step(&mut batch).is_some() {}
    assert_eq!((tokens(&mut old), tokens(&mut new)), (20, 20));
    assert!(batch.tally.preemptions > 0);
    let all = batch.tally.tenants[0];
    assert_eq!((all.prompt, all.output, all.finished), (60, 40, 2));
    assert!(batch.tally.kv_peak <= 64);
}

#[test]
fn a_request_whose_client_is_gone_makes_no_more_tokens() {
    let mut batch = batch(|_| ());
    let received = push(&mut batch, 4, 100);
    for _ in 0..5 {
        step(&mut batch);
    }
    drop(received);
    assert_eq!(step(&mut batch), None);
    let all = batch.tally.tenants[0];
    assert_eq!((all.output, all.aborted, all.finished), (5, 1, 0));
}

#[test]
fn known_blocks_are_not_computed_again() {
    let mut batch = batch(|_| ());
    for cached in [0, 32] {
        let (events, mut received) = unbounded_channel();
        batch.push(Sequence::new(0, 40, 1, vec![1, 2], events));
        step(&mut batch);
        received.try_recv().expect("a token");
        assert_eq!(received.try_recv(), Ok(Event::End { cached }));
    }
    let all = batch.tally.tenants[0];
    assert_eq!((all.prompt, all.cached), (48, 32));
}
