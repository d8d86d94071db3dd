package bookwarden.broker;

import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Function;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.versioning.Versioned;

/**
 * Looks for a ledger in one cluster after the other. After an error, or while a cluster is silent, the next is asked
 * too, and whichever has the ledger is right: an original is the truth wherever it is, and a copy is one of a closed
 * ledger. It is absent only if each cluster said so; if none has it, and one did not say, the search fails.
 *
 * @param ledger the ledger's id
 * @param order the clusters, as they are asked
 * @param question asks one of them
 * @param patienceMillis one that is silent for longer is waited for no more than the next
 */
record LedgerSearch(ClusterView view, long ledger, List<BookieCluster> order,
                    Function<BookieCluster, CompletableFuture<Versioned<LedgerMetadata>>> question,
                    long patienceMillis) {
    /** A ledger's metadata with its version as the client gets it, and the cluster that has it. */
    record Found(BookieCluster cluster, Versioned<LedgerMetadata> metadata) {
    }

    /** Return where the ledger is; empty if it is absent. */
    CompletableFuture<Optional<Found>> run() {
        return from(0);
    }

    private CompletableFuture<Optional<Found>> from(int index) {
        if (index == order.size()) {
            return CompletableFuture.completedFuture(Optional.empty());
        }
        BookieCluster cluster = order.get(index);
        CompletableFuture<Optional<Found>> here = askOne(cluster);
        CompletableFuture<Optional<Found>> further = Answers.within(patienceMillis, here).handle((found, error) -> {
            if (error == null && found.isPresent()) {
                return here;
            }
            if (!here.isDone()) {
                cluster.noteSilence();
            }
            return from(index + 1);
        }).thenCompose(x -> x);
        return either(here, further);
    }

    private CompletableFuture<Optional<Found>> askOne(BookieCluster cluster) {
        return question.apply(cluster).handle((metadata, error) -> {
            if (error == null) {
                return view.isThere(cluster, ledger, metadata.getValue())
                        ? Optional.of(new Found(cluster, view.place(cluster, metadata))) : Optional.empty();
            }
            BKException failure = Answers.translated(error);
            if (Answers.isAbsent(failure)) {
                return Optional.empty();
            }
            throw new CompletionException(failure);
        });
    }

    /** Return what one of both found, as soon as it did; else the first one's error, or the other's. */
    private static CompletableFuture<Optional<Found>> either(CompletableFuture<Optional<Found>> first,
                                                             CompletableFuture<Optional<Found>> second) {
        CompletableFuture<Optional<Found>> answer = new CompletableFuture<>();
        Runnable tell = () -> foundBy(first).or(() -> foundBy(second)).ifPresent(x -> answer.complete(Optional.of(x)));
        first.whenComplete((found, error) -> tell.run());
        second.whenComplete((found, error) -> tell.run());
        CompletableFuture.allOf(first, second).whenComplete((done, error) -> {
            tell.run();
            if (first.isCompletedExceptionally() || second.isCompletedExceptionally()) {
                (first.isCompletedExceptionally() ? first : second).whenComplete(
                        (none, failure) -> answer.completeExceptionally(Answers.cause(failure)));
            } else {
                answer.complete(Optional.empty());
            }
        });
        return answer;
    }

    private static Optional<Found> foundBy(CompletableFuture<Optional<Found>> question) {
        return question.isDone() && !question.isCompletedExceptionally() ? question.join() : Optional.empty();
    }
}
