package bookwarden.broker;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.pulsar.metadata.api.MetadataStoreException;

/** Answers of metadata stores as BookKeeper's client needs them: BKExceptions, and not wrapped in anything. */
public final class Answers {
    private Answers() {
    }

    static <T> CompletableFuture<T> failed(Throwable error) {
        CompletableFuture<T> future = new CompletableFuture<>();
        future.completeExceptionally(error);
        return future;
    }

    /** Return an answer that fails with TimeoutException after so long; the given one goes on. */
    public static <T> CompletableFuture<T> within(long millis, CompletableFuture<T> answer) {
        return answer.copy().orTimeout(millis, TimeUnit.MILLISECONDS);
    }

    /** Return what went wrong, without the exceptions in which futures wrap it. */
    public static Throwable cause(Throwable error) {
        Throwable inner = error;
        while ((inner instanceof CompletionException || inner instanceof ExecutionException)
                && inner.getCause() != null) {
            inner = inner.getCause();
        }
        return inner;
    }

    /**
     * Return the error as the client's code compares it: by class, so that no future may wrap it. Some operations of
     * Pulsar's ledger manager fail with errors of its store.
     */
    public static BKException translated(Throwable error) {
        Throwable cause = cause(error);
        if (cause instanceof BKException) {
            return (BKException) cause;
        }
        if (cause instanceof MetadataStoreException.NotFoundException) {
            return new BKException.BKNoSuchLedgerExistsOnMetadataServerException();
        }
        if (cause instanceof MetadataStoreException.BadVersionException) {
            return new BKException.BKMetadataVersionException();
        }
        return new BKException.MetaStoreException(cause);
    }

    public static boolean isAbsent(BKException error) {
        return error.getCode() == BKException.Code.NoSuchLedgerExistsOnMetadataServerException
                || error.getCode() == BKException.Code.NoSuchLedgerExistsException;
    }

    /** Return whether the metadata was read, and it is only not as the caller had it: its store is well. */
    static boolean isOrdinary(BKException error) {
        return isAbsent(error) || error.getCode() == BKException.Code.MetadataVersionException
                || error.getCode() == BKException.Code.LedgerExistException;
    }
}
