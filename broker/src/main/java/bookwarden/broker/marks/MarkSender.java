package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.ServiceConfigurationUtils;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends marks to the deletion topic, as src/bookwarden/clusters/pulsar/messages/mark_sender.py does: same payload,
 * schema, key and partition. Its client is its own, made when it is first needed; for one thread.
 */
final class MarkSender {
    private static final Logger LOG = LoggerFactory.getLogger(MarkSender.class);
    private static final int CHUNK = 500;
    private static final int SEND_SECONDS = 30;
    /** A producer that connects again makes a topic that was deleted, where topics make themselves. */
    private static final long IDLE_NANOS = TimeUnit.SECONDS.toNanos(30);
    private static final String CLIENT_PREFIX = "brokerClient_";

    private final MetadataStoreExtended store;
    private final Callable<PulsarClient> connect;
    private final String reason;
    private final long limitMillis;
    private PulsarClient client;
    private final Map<List<String>, Producer<byte[]>> producers = new HashMap<>();
    private String reported = "";
    private long used;

    /**
     * @param connect makes a client
     * @param reason in each mark, for people
     */
    MarkSender(MetadataStoreExtended store, Callable<PulsarClient> connect, String reason, long limitMillis) {
        this.store = store;
        this.connect = connect;
        this.reason = reason;
        this.limitMillis = limitMillis;
    }

    /**
     * Send marks and wait for the broker; return whether it confirmed all. What it did not is to be sent again. None at
     * all: close producers that were not used for a time.
     */
    boolean send(List<Mark> marks) throws InterruptedException {
        if (marks.isEmpty()) {
            if (System.nanoTime() - used > IDLE_NANOS) {
                closeProducers();
            }
            return true;
        }
        used = System.nanoTime();
        try {
            DeletionTopic topic = DeletionTopic.read(store, limitMillis);
            MarkMetrics.WAITING.set(0);
            for (int start = 0; start < marks.size(); start += CHUNK) {
                sendChunk(topic, marks.subList(start, Math.min(marks.size(), start + CHUNK)));
            }
            report("");
            return true;
        } catch (IOException e) {
            MarkMetrics.WAITING.set(1);
            closeProducers();
            report(e.getMessage());
        } catch (InterruptedException e) {
            throw e;
        } catch (Exception | LinkageError e) {
            // A producer whose topic was terminated or deleted never works again: the next one is another.
            closeProducers();
            report(Answers.cause(e).toString());
        }
        return false;
    }

    private void sendChunk(DeletionTopic topic, List<Mark> marks) throws Exception {
        List<String> names = topic.names();
        List<CompletableFuture<MessageId>> sends = new ArrayList<>();
        List<Mark> failed = new ArrayList<>(marks);
        try {
            for (Mark each : marks) {
                sends.add(producer(names.get(each.partition(names.size())), topic).newMessage().key(each.key())
                        .value(topic.schema().encode(each, reason)).sendAsync());
            }
            // Their number is that of the marks: each answers within the timeout of sends.
            Throwable error = null;
            for (int index = 0; index < sends.size(); index++) {
                try {
                    sends.get(index).get(2L * SEND_SECONDS, TimeUnit.SECONDS);
                    failed.remove(marks.get(index));
                    MarkMetrics.SENT.labels(marks.get(index).ledgerType(), MarkMetrics.DELETION).inc();
                } catch (ExecutionException e) {
                    error = e;
                }
            }
            if (error != null) {
                throw new ExecutionException(Answers.cause(error));
            }
        } finally {
            failed.forEach(each -> MarkMetrics.FAILED.labels(each.ledgerType()).inc());
        }
    }

    private Producer<byte[]> producer(String name, DeletionTopic topic) throws Exception {
        if (client == null) {
            client = connect.call();
        }
        List<String> key = List.of(name, topic.schema().toString());
        Producer<byte[]> found = producers.get(key);
        if (found == null) {
            found = client.newProducer(topic.schema()).topic(name).sendTimeout(SEND_SECONDS, TimeUnit.SECONDS)
                    .blockIfQueueFull(false).maxPendingMessages(2 * CHUNK).enableBatching(true)
                    .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS).create();
            producers.put(key, found);
        }
        return found;
    }

    private void closeProducers() {
        producers.values().forEach(Producer::closeAsync);
        producers.clear();
    }

    /** Log an error once, until there is another one, and its end. */
    private void report(String error) {
        if (!error.equals(reported)) {
            reported = error;
            if (error.isEmpty()) {
                LOG.info("marks are sent to the deletion topic again");
            } else {
                LOG.error("marks stay in the outbox, and are sent later: {}", error);
            }
        }
    }

    void close() {
        closeProducers();
        if (client != null) {
            client.closeAsync();
        }
    }

    /** Return a client with the broker's own settings of its clients, as PulsarService makes them. */
    static PulsarClient connect(ServiceConfiguration conf) throws PulsarClientException {
        Map<String, Object> others = new HashMap<>(Map.of("statsIntervalSeconds", 0));
        for (String name : conf.getProperties().stringPropertyNames()) {
            if (name.startsWith(CLIENT_PREFIX)) {
                others.put(name.substring(CLIENT_PREFIX.length()), conf.getProperties().getProperty(name));
            }
        }
        ClientBuilder builder = PulsarClient.builder().loadConf(others);
        if (conf.isBrokerClientTlsEnabled()) {
            useTls(conf, builder);
        } else {
            builder.serviceUrl(ServiceConfigurationUtils.getInternalListener(conf, "pulsar").getBrokerServiceUrl()
                    .toString());
        }
        String plugin = conf.getBrokerClientAuthenticationPlugin();
        if (plugin != null && !plugin.isBlank()) {
            builder.authentication(plugin, conf.getBrokerClientAuthenticationParameters());
        }
        return builder.build();
    }

    private static void useTls(ServiceConfiguration conf, ClientBuilder builder) {
        builder.serviceUrl(ServiceConfigurationUtils.getInternalListener(conf, "pulsar+ssl").getBrokerServiceUrlTls()
                        .toString())
                .tlsCiphers(conf.getBrokerClientTlsCiphers()).tlsProtocols(conf.getBrokerClientTlsProtocols())
                .allowTlsInsecureConnection(conf.isTlsAllowInsecureConnection())
                .enableTlsHostnameVerification(conf.isTlsHostnameVerificationEnabled())
                .sslFactoryPlugin(conf.getBrokerClientSslFactoryPlugin())
                .sslFactoryPluginParams(conf.getBrokerClientSslFactoryPluginParams());
        if (conf.isBrokerClientTlsEnabledWithKeyStore()) {
            builder.useKeyStoreTls(true).tlsTrustStoreType(conf.getBrokerClientTlsTrustStoreType())
                    .tlsTrustStorePath(conf.getBrokerClientTlsTrustStore())
                    .tlsTrustStorePassword(conf.getBrokerClientTlsTrustStorePassword())
                    .tlsKeyStoreType(conf.getBrokerClientTlsKeyStoreType())
                    .tlsKeyStorePath(conf.getBrokerClientTlsKeyStore())
                    .tlsKeyStorePassword(conf.getBrokerClientTlsKeyStorePassword());
        } else {
            String trusted = conf.getBrokerClientTrustCertsFilePath();
            builder.tlsTrustCertsFilePath(trusted == null || trusted.isBlank() ? conf.getTlsTrustCertsFilePath()
                            : trusted)
                    .tlsKeyFilePath(conf.getBrokerClientKeyFilePath())
                    .tlsCertificateFilePath(conf.getBrokerClientCertificateFilePath());
        }
    }
}
