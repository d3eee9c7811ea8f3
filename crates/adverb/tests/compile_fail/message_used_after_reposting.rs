//! A message can't be used after its buffer was posted again.

use adverb::verbs::{Completion, QueuePair};

fn repost(queue_pair: &QueuePair, completion: Completion) -> adverb::verbs::Result<usize> {
    let message = completion.into_message()?;
    let text = std::str::from_utf8(&message).unwrap_or_default();
    queue_pair.post_recv(message)?;
    Ok(text.len())
}

fn main() {}
